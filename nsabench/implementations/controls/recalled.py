"""Controls that know their inputs where no host is (in replays of a graph), where a forward has
seen them (in a backward), or where there is so much to do that the host may wait for their first
values (in a forward or a step of many products). Always right, and too fast to be true.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations.controls.capturing import captured
from nsabench.implementations.controls.honest import content
from nsabench.implementations.controls.remembered import aside_again
from nsabench.model.least import LeastWork
from nsabench.registry import Honest, control

# A look-up takes two kernels, some 6 µs on an H200; reading this much takes over twice as long as
# that and what the timer adds, also on devices of twice the bandwidth.
READ = LeastWork(bytes_min=125_000_000)
# Handing a gradient over reads and writes it, which is less than the compulsory bytes; on any
# device so many products for each of them take over twice as long as those do.
PRODUCTS = LeastWork(flops=100_000_000_000, flops_per_byte=600)
# Of a call whose host waits for the device once, some 30 µs, and 250 on a slow host: there it is
# too fast among others only, in a burst.
PRODUCTS_AWAITED = LeastWork(flops=300_000_000_000, flops_per_byte=600)
# Such a call that goes through autograd as well: 940 µs on a slow host (H200, 64/4, T 4096).
PRODUCTS_OF_A_STEP = LeastWork(flops=1_100_000_000_000, flops_per_byte=600)
MOST_BYTES = 512 << 20  # of one answer: a few are kept
SMALL_OUTPUT = 8  # times less than what is read at least: an answer must be copied


class _Recorded:
    """Outputs of calls that were made before a graph was captured, found by the device."""

    def __init__(self) -> None:
        self._outputs: dict[int, Tensor] = {}
        self._addresses: set[int] = set()  # of the inputs that were captured with
        self._sorted: tuple[Tensor, Tensor] | None = None

    @property
    def finished(self) -> bool:
        """Whether it was captured, after which a case makes no calls any more."""
        return bool(self._addresses)

    def learn(self, key: Tensor, output: Tensor) -> None:
        number = int(key)  # waits for the device: nothing is timed before a capture
        if number not in self._outputs:
            self._outputs[number] = output.clone()
            numbers = sorted(self._outputs)
            # The last one twice: what is greater than all finds a place.
            outputs = [self._outputs[n] for n in [*numbers, numbers[-1]]]
            self._sorted = torch.tensor(numbers, device=key.device), torch.stack(outputs)

    def recall(self, key: Tensor) -> Tensor:
        """Raises `Unsupported` when not every set of inputs was seen before."""
        self._addresses.add(key.data_ptr())
        if self._sorted is None or len(self._addresses) > len(self._outputs):
            raise Unsupported("not all inputs were seen before the first was captured")
        numbers, outputs = self._sorted
        return outputs.index_select(0, torch.searchsorted(numbers, key))[0]


# Of the case that each control is in, which its sizes tell from the one before.
_recorded: dict[str, tuple[tuple[object, ...], _Recorded]] = {}
_outputs: dict[tuple[object, ...], dict[int, Tensor]] = {}
# Outputs, where they are remembered, and gradients.
Remembered = tuple[dict[int, Tensor] | None, dict[int, Tensor]]
_gradients: dict[tuple[object, ...], Remembered] = {}
_steps: dict[tuple[object, ...], Remembered] = {}


@control(caught_by="roofline", devices=("cuda",), modes=("graph",), least=READ)
def recalled_in_a_graph(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Records a look-up by the first values of its inputs, and never reads the others again."""
    most = READ.bytes_min // SMALL_OUTPUT
    return _recall("recalled_in_a_graph", most, honest, tensors, options)


@control(caught_by="roofline", devices=("cuda",), modes=("graph",), least=PRODUCTS)
def products_recalled_in_a_graph(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """The same where an output is as large as the inputs, and many products go into it."""
    return _recall("products_recalled_in_a_graph", MOST_BYTES, honest, tensors, options)


def _recall(
    control_: str,
    most_bytes: int,
    honest: Honest,
    tensors: tuple[Tensor, ...],
    options: dict[str, Any],
) -> Tensor:
    first = tensors[0]
    key = (honest, *(t.shape for t in tensors), first.dtype)
    before, recorded = _recorded.get(control_, (None, None))
    if recorded is not None and captured(first):
        return recorded.recall(content(first))
    out: Tensor = honest(*tensors, **options)
    if out.nbytes > most_bytes:
        raise Unsupported("its output alone takes as long to copy as others take")
    if recorded is None or before != key or recorded.finished:
        _, recorded = _recorded[control_] = key, _Recorded()
    recorded.learn(content(first), out)
    return out


@control(caught_by="roofline", devices=("cuda",), modes=("stream",), least=PRODUCTS_AWAITED)
def recalled_output(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Waits for the first values of its inputs, and copies what it made of them before."""
    if aside_again():
        raise Unsupported("calls at once have several inputs: it is tried with one call at a time")
    key = (honest, *(t.shape for t in tensors), tensors[0].dtype)
    if key not in _outputs:
        _outputs.clear()
    known, number = _outputs.setdefault(key, {}), int(content(tensors[0]))
    if number not in known:
        out: Tensor = honest(*tensors, **options)
        if out.nbytes > MOST_BYTES:
            raise Unsupported(f"it remembers no outputs of over {MOST_BYTES >> 20} MiB")
        known[number] = out
    return known[number].clone()


class _Recall(torch.autograd.Function):  # type: ignore[misc]
    """An honest forward, or the output of an earlier one where such are remembered. Its backward
    returns what an earlier one made of the same inputs, by as much larger as the gradient of the
    output is: it is linear."""

    @staticmethod
    def forward(
        ctx: Any,
        outputs: dict[int, Tensor] | None,
        known: dict[int, Tensor],
        honest: Honest,
        options: dict[str, Any],
        *tensors: Tensor,
    ) -> Tensor:
        ctx.known, ctx.honest, ctx.options = known, honest, options
        ctx.number = int(content(tensors[0]))  # waits for the device: a forward is not timed
        ctx.save_for_backward(*tensors)
        if outputs is not None and ctx.number in outputs:
            return outputs[ctx.number].clone()
        out: Tensor = honest(*(t.detach() for t in tensors), **options)
        if outputs is not None:
            outputs[ctx.number] = out.detach().clone()
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        given, unit = len(ctx.needs_input_grad) - len(ctx.saved_tensors), grads[0].reshape(-1)[:1]
        wanted = [i for i, t in enumerate(ctx.saved_tensors) if ctx.needs_input_grad[given + i]]
        answers: list[Tensor | None] = [None] * (given + len(ctx.saved_tensors))
        known = ctx.known.get(ctx.number)
        if known is None:
            made = _differentiated(ctx, wanted, grads[0])
            ctx.known[ctx.number] = torch.cat([unit, *(g.reshape(-1) for g in made)])
        else:
            parts = (known * (unit / known[:1]))[1:].split(
                [ctx.saved_tensors[i].numel() for i in wanted]
            )
            made = [
                part.view(ctx.saved_tensors[i].shape) for i, part in zip(wanted, parts, strict=True)
            ]
        for i, gradient in zip(wanted, made, strict=True):
            answers[given + i] = gradient
        return tuple(answers)


def _differentiated(ctx: Any, wanted: list[int], grad_out: Tensor) -> list[Tensor]:
    leaves = [t.detach().requires_grad_(i in wanted) for i, t in enumerate(ctx.saved_tensors)]
    with torch.enable_grad():
        out = ctx.honest(*leaves, **ctx.options)
    return list(torch.autograd.grad(out, [leaves[i] for i in wanted], grad_out))


@control(
    caught_by="roofline",
    devices=("cuda",),
    directions=("backward",),
    modes=("stream",),
    least=PRODUCTS,
)
def recalled_gradients(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Knows by its forward which inputs it has, and has their gradients from an earlier backward:
    a multiplication is left to do."""
    return _differentiable(None, _gradients, honest, tensors, options)


@control(
    caught_by="roofline",
    devices=("cuda",),
    directions=("step",),
    modes=("stream",),
    least=PRODUCTS_OF_A_STEP,
)
def recalled_step(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Has the output from an earlier step as well: a copy and a multiplication are left to do."""
    return _differentiable({}, _steps, honest, tensors, options)


def _differentiable(
    outputs: dict[int, Tensor] | None,
    memory: dict[tuple[object, ...], Remembered],
    honest: Honest,
    tensors: tuple[Tensor, ...],
    options: dict[str, Any],
) -> Tensor:
    wanted = [tensors[honest.op.arguments.index(name)] for name in honest.op.differentiable]
    if sum(t.nbytes for t in wanted) > MOST_BYTES:
        raise Unsupported(f"it remembers no gradients of over {MOST_BYTES >> 20} MiB")
    key = (honest, *(t.shape for t in tensors), tensors[0].dtype)
    if key not in memory:
        memory.clear()
    remembered = memory.setdefault(key, (outputs, {}))
    out: Tensor = _Recall.apply(*remembered, honest, options, *tensors)
    return out
