"""Controls that return stored results: right, but faster than is possible (check `roofline`).

They recognise inputs by their first values, on the device, or on the host, which waits for these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations.controls._shared import Tensors, is_captured
from nsabench.model.plan import LeastWork
from nsabench.registry import Honest, control

# On any device, reading so much takes several times as long as a look-up (two kernels, one copy).
MUCH = LeastWork(bytes_min=400_000_000)
# In a graph, a look-up takes 6 µs on an H200. Even at twice the bandwidth of the H200, reading so
# much takes longer than two look-ups and the time that the timer itself adds.
READ = LeastWork(bytes_min=125_000_000)
# Computing a gradient moves more bytes than returning a stored one. With so many operations a byte,
# it also takes over twice as long on any device.
PRODUCTS = LeastWork(flops=100_000_000_000, flops_per_byte=600)
# A call that waits for the device may take 250 µs on a slow host. Then only its times in bursts
# (calls back to back) are impossible.
PRODUCTS_AWAITED = LeastWork(flops=300_000_000_000, flops_per_byte=600)
# With autograd, a call that waits for the device may take 940 µs on a slow host.
PRODUCTS_OF_A_STEP = LeastWork(flops=1_100_000_000_000, flops_per_byte=600)
MOST_BYTES = 512 << 20  # the most bytes of one stored result
LEARNING_CALLS = 64  # the most calls whose first values are still being copied to the host
NOT_YET = -1  # stands for a number that has not arrived; no first values are -1
SMALL_OUTPUT = 8  # the output must be this many times smaller than what is read

M = TypeVar("M")
Number = int  # made of the first values of the first input; it identifies a set of inputs

_control = partial(control, caught_by="roofline", devices=("cuda",))
_in_calls = partial(_control, modes=("stream",))

_memories: dict[str, tuple[object, Any]] = {}  # by control: its last case, and stored results


def _get_memory(control: str, honest: Honest, tensors: Tensors, make: Callable[[], M]) -> M:
    case = (honest, *(t.shape for t in tensors), tensors[0].dtype)
    if control not in _memories or _memories[control][0] != case:
        _memories[control] = case, make()
    memory: M = _memories[control][1]
    return memory


def _content(tensor: Tensor) -> Tensor:
    """Return the first values as one number, int64 [1], which differs for every set of inputs."""
    few = 8 // tensor.element_size()
    return tensor.detach().reshape(-1)[:few].view(torch.int64)


def _refuse_slow_copy(out: Tensor, most_bytes: int) -> None:
    if out.nbytes > most_bytes:
        raise Unsupported("copying its output alone takes as long as an honest call")


class _Answers:
    """Stores outputs by the `Number` of their inputs, and lets the device look them up."""

    def __init__(self) -> None:
        self.by_number: dict[Number, Tensor] = {}
        self._sorted: tuple[Tensor, Tensor] | None = None

    def prepare(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Stack all stored outputs, in the order of their numbers. Synchronises."""
        numbers = sorted(self.by_number)
        # The last output is stored twice: a number above all others selects the place after it.
        outputs = [self.by_number[n] for n in [*numbers, numbers[-1]]]
        self._sorted = torch.tensor(numbers, device=device), torch.stack(outputs)
        return self._sorted

    def look_up(self, number: Tensor) -> Tensor:
        numbers, outputs = self._sorted or self.prepare(number.device)
        return outputs.index_select(0, torch.searchsorted(numbers, number))[0]


class _Sets(_Answers):
    """Stores outputs for sets of inputs that the caller uses in a fixed order, again and again.

    The host never waits. All sets are known once the last set is followed by the first and then the
    second. The first set without the second may also come in between.
    """

    def __init__(self, is_cuda: bool) -> None:
        super().__init__()
        self._sets: list[Tensor] = []  # kept alive, so that no other tensor gets their addresses
        self._before = 0  # the address of the previous call's first tensor
        self._first_again = self._around = False
        self._arrived = torch.full((LEARNING_CALLS,), NOT_YET)  # numbers are copied to it
        if is_cuda:
            self._arrived = self._arrived.pin_memory()
        self._asked: dict[int, Tensor] = {}  # outputs, by the places that await their numbers

    def answer(self, first: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        self._walk(first)
        self._read_numbers()
        number = _content(first)
        if self._around and len(self.by_number) >= len(self._sets):
            return self.look_up(number)
        output = compute()
        self._send_number(number, output)
        return output

    def _walk(self, first: Tensor) -> None:
        addresses = [t.data_ptr() for t in self._sets]
        address = first.data_ptr()
        if address not in addresses:
            if self._around:  # not all sets were known, or a new case began: start again
                self.__init__()  # type: ignore[misc]
            self._sets.append(first.detach())
            self._first_again = False
        elif address == addresses[0]:
            self._first_again |= addresses[0] != addresses[-1] == self._before
        else:
            self._around |= self._first_again and address == addresses[1]
            self._first_again = False
        self._before = address

    def _send_number(self, number: Tensor, output: Tensor) -> None:
        free = next((at for at in range(LEARNING_CALLS) if at not in self._asked), None)
        if free is not None:
            self._asked[free] = output.clone()  # the bench overwrites what a call returned
            self._arrived[free : free + 1].copy_(number, non_blocking=True)

    def _read_numbers(self) -> None:
        for place, output in list(self._asked.items()):
            number = int(self._arrived[place])
            if number != NOT_YET:
                self.by_number.setdefault(number, output)
                self._arrived[place] = NOT_YET
                del self._asked[place]


@_in_calls(least=MUCH)
def remembered_by_content(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Stores outputs, and later reads only the first values of its inputs to find the right one."""

    def compute() -> Tensor:
        out = honest(*tensors, **options)
        _refuse_slow_copy(out, MUCH.bytes_min // SMALL_OUTPUT)
        return out

    sets = _get_memory("remembered_by_content", honest, tensors, partial(_Sets, tensors[0].is_cuda))
    return sets.answer(tensors[0], compute)


class _Recorded(_Answers):
    def __init__(self) -> None:
        super().__init__()
        self._addresses: set[int] = set()  # addresses of the inputs of captured calls

    def learn(self, number: Tensor, output: Tensor) -> None:
        if self._addresses:  # a new case: after captures, a case makes only captured calls
            self.__init__()  # type: ignore[misc]
        if int(number) not in self.by_number:  # the host waits, but nothing is timed yet
            self.by_number[int(number)] = output.clone()
            self.prepare(number.device)

    def recall(self, number: Tensor) -> Tensor:
        """Return the stored output. Raises `Unsupported` if a set of inputs is new."""
        self._addresses.add(number.data_ptr())
        if not self.by_number or len(self._addresses) > len(self.by_number):
            raise Unsupported("not all inputs were seen before the first was captured")
        return self.look_up(number)


def _recall(
    control: str, most_bytes: int, honest: Honest, *tensors: Tensor, **options: Any
) -> Tensor:
    recorded = _get_memory(control, honest, tensors, _Recorded)
    if is_captured(tensors[0]):
        return recorded.recall(_content(tensors[0]))
    out = honest(*tensors, **options)
    _refuse_slow_copy(out, most_bytes)
    recorded.learn(_content(tensors[0]), out)
    return out


for _name, _least, _most in (
    ("recalled_in_a_graph", READ, READ.bytes_min // SMALL_OUTPUT),
    ("products_recalled_in_a_graph", PRODUCTS, MOST_BYTES),
):
    _control(name=_name, modes=("graph",), least=_least)(partial(_recall, _name, _most))


@_in_calls(least=PRODUCTS_AWAITED)
def recalled_output(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Waits for the first values of its inputs and copies the stored output."""
    outputs: dict[Number, Tensor] = _get_memory("recalled_output", honest, tensors, dict)
    number = int(_content(tensors[0]))
    if number not in outputs:
        out = honest(*tensors, **options)
        _refuse_slow_copy(out, MOST_BYTES)
        outputs[number] = out
    return outputs[number].clone()


class _Recall(torch.autograd.Function):  # type: ignore[misc]
    """Computes or recalls an output and gradients. Recalled gradients are scaled like `grads`."""

    @staticmethod
    def forward(ctx: Any, memory: _Training, call: Any, *tensors: Tensor) -> Tensor:
        ctx.gradients, ctx.call = memory.gradients, call
        ctx.number = int(_content(tensors[0]))  # the host waits
        ctx.save_for_backward(*tensors)
        if ctx.number in memory.outputs:
            return memory.outputs[ctx.number].clone()
        out: Tensor = call(*(t.detach() for t in tensors))
        if memory.keeps_outputs:
            memory.outputs[ctx.number] = out.detach().clone()
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, unit = ctx.saved_tensors, grads[0].reshape(-1)[:1]
        before = len(ctx.needs_input_grad) - len(saved)  # arguments that are not tensors
        wanted = [i for i in range(len(saved)) if ctx.needs_input_grad[before + i]]
        stored = ctx.gradients.get(ctx.number)
        if stored is None:
            leaves = [t.detach().requires_grad_(i in wanted) for i, t in enumerate(saved)]
            with torch.enable_grad():
                out = ctx.call(*leaves)
            made = torch.autograd.grad(out, [leaves[i] for i in wanted], grads[0])
            ctx.gradients[ctx.number] = torch.cat([unit, *(g.reshape(-1) for g in made)])
        else:
            parts = (stored * (unit / stored[:1]))[1:].split([saved[i].numel() for i in wanted])
            made = [x.view(saved[i].shape) for i, x in zip(wanted, parts, strict=True)]
        gradients = dict(zip(wanted, made, strict=True))
        return (*[None] * before, *(gradients.get(i) for i in range(len(saved))))


@dataclass
class _Training:
    keeps_outputs: bool
    outputs: dict[Number, Tensor] = field(default_factory=dict)
    gradients: dict[Number, Tensor] = field(default_factory=dict)


def _recall_gradients(
    control: str, keeps_outputs: bool, honest: Honest, *tensors: Tensor, **options: Any
) -> Tensor:
    """Recognises its inputs in the forward, and scales stored gradients in the backward."""
    wanted = [tensors[honest.op.arguments.index(name)] for name in honest.op.differentiable]
    if sum(t.nbytes for t in wanted) > MOST_BYTES:
        raise Unsupported(f"it stores gradients of at most {MOST_BYTES >> 20} MiB")
    memory = _get_memory(control, honest, tensors, partial(_Training, keeps_outputs))
    return _Recall.apply(memory, partial(honest, **options), *tensors)


for _name, _direction, _keeps_outputs, _least in (
    ("recalled_gradients", "backward", False, PRODUCTS),
    ("recalled_step", "step", True, PRODUCTS_OF_A_STEP),
):
    _in_calls(name=_name, directions=(_direction,), least=_least)(
        partial(_recall_gradients, _name, _keeps_outputs)
    )
