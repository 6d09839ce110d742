"""Controls that answer from memory: always right, and too fast to be true (check `roofline`).

They know their inputs by the first values. A replay of a graph has no host. A backward has the
forward, which has seen the inputs. If there is much to read, the device can look the answer up. If
there is much to compute, the host can wait for these values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations.controls._shared import Options, Tensors, captured
from nsabench.model.least import LeastWork
from nsabench.registry import Honest, control

# Looking an answer up takes two kernels and the copy of it. Reading this much takes any device
# several times as long.
MUCH = LeastWork(bytes_min=400_000_000)
# In a graph a look-up takes two kernels, some 6 µs on an H200. Reading this much takes over twice
# as long as that and what the timer adds, also on devices of twice the bandwidth.
READ = LeastWork(bytes_min=125_000_000)
# Handing a gradient over reads and writes it, which is less than the compulsory bytes. On any
# device so many products for each of these bytes take over twice as long.
PRODUCTS = LeastWork(flops=100_000_000_000, flops_per_byte=600)
# A call whose host waits for the device once takes some 30 µs, and 250 on a slow host: there it is
# too fast among others only, in a burst.
PRODUCTS_AWAITED = LeastWork(flops=300_000_000_000, flops_per_byte=600)
# Such a call that also goes through autograd: 940 µs on a slow host (H200, 64/4, T 4096).
PRODUCTS_OF_A_STEP = LeastWork(flops=1_100_000_000_000, flops_per_byte=600)
MOST_BYTES = 512 << 20  # of one answer: a few are kept
LEARNING_CALLS = 64  # whose first values have not reached the host yet
NOT_YET = -1  # the bits of no number that is drawn
SMALL_OUTPUT = 8  # times less than what is read at least: an answer from memory must be copied

Case = tuple[object, ...]
M = TypeVar("M")

_control = partial(control, caught_by="roofline", devices=("cuda",))
_in_calls = partial(_control, modes=("stream",))
_in_graphs = partial(_control, modes=("graph",))


def _content(tensor: Tensor) -> Tensor:
    """Return the first values as one number that no other set of inputs has: int64 [1]."""
    few = 8 // tensor.element_size()
    return tensor.detach().reshape(-1)[:few].view(torch.int64)


def _of_this_case(
    memory: dict[Case, M], honest: Honest, tensors: Tensors, make: Callable[[], M]
) -> M:
    """Return what is remembered of this case, and forget what was remembered of another one."""
    case = (honest, *(t.shape for t in tensors), tensors[0].dtype)
    if case not in memory:
        memory.clear()
        memory[case] = make()
    return memory[case]


class _Answers:
    """Outputs by the first values of their inputs, which the device looks up."""

    def __init__(self) -> None:
        self.by_number: dict[int, Tensor] = {}
        self._sorted: tuple[Tensor, Tensor] | None = None

    def prepare(self, device: torch.device) -> None:
        """Put what is known on the device, which waits for the host."""
        numbers = sorted(self.by_number)
        # The last one twice, so that what is greater than all finds a place.
        outputs = [self.by_number[n] for n in [*numbers, numbers[-1]]]
        self._sorted = torch.tensor(numbers, device=device), torch.stack(outputs)

    def look_up(self, number: Tensor) -> Tensor:
        """number: int64 [1]."""
        if self._sorted is None:
            self.prepare(number.device)
        assert self._sorted is not None
        numbers, outputs = self._sorted
        return outputs.index_select(0, torch.searchsorted(numbers, number))[0]


class _Memory:
    """Outputs by the first values of their inputs, looked up by the device.

    The host never waits: the timer hides the launches of a call only as long as it does not. Inputs
    come in sets, one after the other. Before that, and in between, the first set may come again
    with the values of any other, also of one that is yet to come. When it comes after the last set,
    and the second follows, all sets were seen. Once as many values are known, nothing is computed.
    """

    def __init__(self) -> None:
        self._sets: list[Tensor] = []  # kept, so that no other tensor gets their addresses
        self._before = 0  # the address of the inputs of the last call
        self._first_again = self._around = False
        self._arrived: Tensor | None = None  # first values, once they have reached the host
        self._asked: dict[int, Tensor] = {}  # outputs by the place in `_arrived`
        self._answers = _Answers()

    def answer(self, first: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        """Return what `compute` returns, or returned for these inputs before."""
        self._walk(first)
        self._hear()
        number = _content(first)
        if self._around and len(self._answers.by_number) >= len(self._sets):
            return self._answers.look_up(number)
        output = compute()
        self._ask(number, output)
        return output

    def _walk(self, first: Tensor) -> None:
        addresses = [t.data_ptr() for t in self._sets]
        address = first.data_ptr()
        if address not in addresses:
            if self._around:  # there was one more, or this is another case
                self.__init__()  # type: ignore[misc]
            self._sets.append(first.detach())
            self._first_again = False
        elif address == addresses[0]:
            self._first_again |= addresses[0] != addresses[-1] == self._before
        else:
            self._around |= self._first_again and address == addresses[1]
            self._first_again = False
        self._before = address

    def _ask(self, number: Tensor, output: Tensor) -> None:
        if self._arrived is None:
            self._arrived = torch.full(
                (LEARNING_CALLS,), NOT_YET, dtype=torch.int64, pin_memory=number.is_cuda
            )
        free = next((at for at in range(LEARNING_CALLS) if at not in self._asked), None)
        if free is not None:
            self._asked[free] = output.clone()  # the bench overwrites what a call returned
            self._arrived[free : free + 1].copy_(number, non_blocking=True)

    def _hear(self) -> None:
        for place, output in list(self._asked.items()):
            assert self._arrived is not None
            number = int(self._arrived[place])
            if number != NOT_YET:
                self._answers.by_number.setdefault(number, output)
                self._arrived[place] = NOT_YET
                del self._asked[place]


_was_aside = False


def aside_again() -> bool:
    """Return whether this call and the one before were both on other streams than the default one.

    A single such call may be the bench's check of a call on another stream.
    """
    global _was_aside
    before, _was_aside = _was_aside, torch.cuda.current_stream() != torch.cuda.default_stream()
    return before and _was_aside


_by_content: dict[Case, _Memory] = {}


@_in_calls(least=MUCH)
def remembered_by_content(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Knows inputs that it has seen by their first values, which change with the others, and reads
    nothing else again."""
    if aside_again():
        raise Unsupported("calls at once share one memory: it is tried with one call at a time")

    def compute() -> Tensor:
        out = honest(*tensors, **options)
        if out.nbytes * SMALL_OUTPUT > MUCH.bytes_min:
            raise Unsupported("its output alone takes as long to copy as others take")
        return out

    return _of_this_case(_by_content, honest, tensors, _Memory).answer(tensors[0], compute)


class _Recorded:
    """Outputs of calls before a graph was captured, which the device looks up."""

    def __init__(self) -> None:
        self._answers = _Answers()
        self._addresses: set[int] = set()  # of the inputs that were captured with

    def learn(self, number: Tensor, output: Tensor) -> None:
        if self._addresses:  # a case makes no calls after its captures: this is another one
            self.__init__()  # type: ignore[misc]
        known = self._answers.by_number
        if int(number) not in known:  # waits for the device: nothing is timed before a capture
            known[int(number)] = output.clone()
            self._answers.prepare(number.device)

    def recall(self, number: Tensor) -> Tensor:
        """Raise `Unsupported` if not every set of inputs was seen before."""
        self._addresses.add(number.data_ptr())
        known = self._answers.by_number
        if not known or len(self._addresses) > len(known):
            raise Unsupported("not all inputs were seen before the first was captured")
        return self._answers.look_up(number)


def _recall(
    memory: dict[Case, _Recorded],
    most_bytes: int,
    honest: Honest,
    tensors: Tensors,
    options: Options,
) -> Tensor:
    recorded = _of_this_case(memory, honest, tensors, _Recorded)
    if captured(tensors[0]):
        return recorded.recall(_content(tensors[0]))
    out = honest(*tensors, **options)
    if out.nbytes > most_bytes:
        raise Unsupported("its output alone takes as long to copy as others take")
    recorded.learn(_content(tensors[0]), out)
    return out


_recorded: dict[Case, _Recorded] = {}
_products_recorded: dict[Case, _Recorded] = {}


@_in_graphs(least=READ)
def recalled_in_a_graph(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Records a look-up by the first values of its inputs, and never reads the others again."""
    return _recall(_recorded, READ.bytes_min // SMALL_OUTPUT, honest, tensors, options)


@_in_graphs(least=PRODUCTS)
def products_recalled_in_a_graph(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Records a look-up like `recalled_in_a_graph`, of an output as large as the inputs into which
    many products go."""
    return _recall(_products_recorded, MOST_BYTES, honest, tensors, options)


_outputs: dict[Case, dict[int, Tensor]] = {}


@_in_calls(least=PRODUCTS_AWAITED)
def recalled_output(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Waits for the first values of its inputs, and copies what it made of them before."""
    if aside_again():
        raise Unsupported("calls at once have several inputs: it is tried with one call at a time")
    known: dict[int, Tensor] = _of_this_case(_outputs, honest, tensors, dict)
    number = int(_content(tensors[0]))
    if number not in known:
        out = honest(*tensors, **options)
        if out.nbytes > MOST_BYTES:
            raise Unsupported(f"it remembers no outputs of over {MOST_BYTES >> 20} MiB")
        known[number] = out
    return known[number].clone()


# Outputs, if they are remembered, and gradients.
_Remembered = tuple[dict[int, Tensor] | None, dict[int, Tensor]]


class _Recall(torch.autograd.Function):  # type: ignore[misc]
    """An honest forward, or the output of an earlier one if such are remembered.

    Its backward returns what an earlier one made of the same inputs, by as much larger as the
    gradient of the output is: it is linear.
    """

    @staticmethod
    def forward(ctx: Any, remembered: _Remembered, call: Any, *tensors: Tensor) -> Tensor:
        outputs, ctx.known = remembered
        ctx.call = call
        ctx.number = int(_content(tensors[0]))  # waits for the device: a forward is not timed
        ctx.save_for_backward(*tensors)
        if outputs is not None and ctx.number in outputs:
            return outputs[ctx.number].clone()
        out = call(*(t.detach() for t in tensors))
        if outputs is not None:
            outputs[ctx.number] = out.detach().clone()
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, unit = ctx.saved_tensors, grads[0].reshape(-1)[:1]
        before = len(ctx.needs_input_grad) - len(saved)  # arguments that are not tensors
        wanted = [i for i in range(len(saved)) if ctx.needs_input_grad[before + i]]
        known = ctx.known.get(ctx.number)
        if known is None:
            leaves = [t.detach().requires_grad_(i in wanted) for i, t in enumerate(saved)]
            with torch.enable_grad():
                out = ctx.call(*leaves)
            made = torch.autograd.grad(out, [leaves[i] for i in wanted], grads[0])
            ctx.known[ctx.number] = torch.cat([unit, *(g.reshape(-1) for g in made)])
        else:
            parts = (known * (unit / known[:1]))[1:].split([saved[i].numel() for i in wanted])
            made = [x.view(saved[i].shape) for i, x in zip(wanted, parts, strict=True)]
        answers: list[Tensor | None] = [None] * (before + len(saved))
        for i, gradient in zip(wanted, made, strict=True):
            answers[before + i] = gradient
        return tuple(answers)


_gradients: dict[Case, _Remembered] = {}
_steps: dict[Case, _Remembered] = {}


@_in_calls(directions=("backward",), least=PRODUCTS)
def recalled_gradients(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Knows by its forward which inputs it has, and has their gradients from an earlier backward:
    a multiplication is left to do."""
    return _differentiable(_gradients, lambda: (None, {}), honest, tensors, options)


@_in_calls(directions=("step",), least=PRODUCTS_OF_A_STEP)
def recalled_step(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Also has the output from an earlier step: a copy and a multiplication are left to do."""
    return _differentiable(_steps, lambda: ({}, {}), honest, tensors, options)


def _differentiable(
    memory: dict[Case, _Remembered],
    make: Callable[[], _Remembered],
    honest: Honest,
    tensors: Tensors,
    options: Options,
) -> Tensor:
    wanted = [tensors[honest.op.arguments.index(name)] for name in honest.op.differentiable]
    if sum(t.nbytes for t in wanted) > MOST_BYTES:
        raise Unsupported(f"it remembers no gradients of over {MOST_BYTES >> 20} MiB")
    remembered = _of_this_case(memory, honest, tensors, make)
    return _Recall.apply(remembered, partial(honest, **options), *tensors)
