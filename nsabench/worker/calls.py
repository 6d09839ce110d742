"""What one call is in each direction: what is done before it, untimed, and what is timed.

Forward: the implementation itself. Step: the implementation, and the backward behind it, both
timed. Backward: the implementation runs as the forward of a graph,
outside the timed region, and the call is `torch.autograd.grad` with a gradient of the output that
the forward has not seen: fresh values in a fresh tensor each time. So all that a backward can know
beforehand is what a forward may save for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Protocol

import torch
from torch import Tensor

from nsabench.delivery import FACTORS, OUTPUT
from nsabench.failure import Failure
from nsabench.model.vocabulary import Direction, Status
from nsabench.ops import Inputs
from nsabench.registry import Implementation


class Sets(Protocol):
    """Sets of inputs, each in a differentiating case with the gradient of its output.

    wanted: the inputs that are differentiated by. results: what a call returns, by name.
    """

    sets: list[Inputs]
    grads: list[Tensor]
    wanted: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """What a call on a set of inputs returned, by name.

    In a backward, grad_out: what it was given, `factor` times the gradient of the set; output: what
    its forward returned, which is right or wrong as that of any other call.
    """

    index: int
    values: dict[str, Any]
    factor: float = 1.0
    grad_out: Tensor | None = None
    output: Any = None

    @property
    def results(self) -> dict[str, Any]:
        """All that it returned, by name."""
        return self.values if self.grad_out is None else {**self.values, OUTPUT: self.output}


@dataclass(frozen=True)
class Ready:
    """A call that is made ready.

    run: the call as a user's code makes it, and nothing besides. answer: what it returned, by name.
    """

    run: Callable[[], Any]
    answer: Callable[[Any], Answer]

    def __call__(self) -> Answer:
        return self.answer(self.run())


def ready(item: Implementation, direction: Direction, sets: Sets, index: int, rng: Random) -> Ready:
    """Do what is not timed of a call on a set of inputs; return the call.

    Raises `Failure` (unsupported) when a backward is asked of an implementation that has none.
    """
    if direction is Direction.FORWARD:
        # Tensors of its own over the same memory: what it does to a tensor itself stays with it.
        tensors = [t.detach() for t in sets.sets[index].tensors.values()]
        call = partial(item.call, *tensors, **sets.sets[index].options)
        return Ready(call, lambda output: Answer(index, {OUTPUT: output}))
    if direction is Direction.STEP:
        return _step(item, sets, index, rng)
    return _backward(item, sets, index, rng)


def _step(item: Implementation, sets: Sets, index: int, rng: Random) -> Ready:
    leaves, given, factor, grad_out = _leaves(sets, index, rng)
    options = sets.sets[index].options
    call = item.call  # bound here: what a user's code would have at hand

    def run() -> tuple[Any, tuple[Any, ...]]:
        out = call(*leaves.values(), **options)
        refuse_without_backward(out)
        return out, torch.autograd.grad(out, given, grad_out, allow_unused=True)

    def answer(returned: tuple[Any, tuple[Any, ...]]) -> Answer:
        out, gradients = returned
        values = dict(zip(sets.results, gradients, strict=True))
        return Answer(index, values, factor, grad_out, out.detach())

    return Ready(run, answer)


def _leaves(
    sets: Sets, index: int, rng: Random
) -> tuple[dict[str, Tensor], list[Tensor], float, Tensor]:
    """Arguments by name, those that are differentiated by, a factor, and a gradient by so much
    larger than that of the set."""
    inputs = sets.sets[index]
    # New leaves over the same memory: nothing that was hung on them in an earlier call is left.
    leaves = {
        name: t.detach().requires_grad_(name in sets.wanted) for name, t in inputs.tensors.items()
    }
    factor = rng.choice(FACTORS)
    return leaves, [leaves[name] for name in sets.wanted], factor, sets.grads[index] * factor


def refuse_without_backward(out: Any) -> None:
    """Raises `Failure` (unsupported)."""
    if not isinstance(out, Tensor) or not out.requires_grad:
        raise Failure(Status.UNSUPPORTED, "its output has no grad_fn: it has no backward")


def _backward(item: Implementation, sets: Sets, index: int, rng: Random) -> Ready:
    leaves, wanted, factor, grad_out = _leaves(sets, index, rng)
    out = item.call(*leaves.values(), **sets.sets[index].options)
    refuse_without_backward(out)
    output = out.detach()  # here, and not in the time of the call

    def answer(gradients: tuple[Any, ...]) -> Answer:
        values = dict(zip(sets.results, gradients, strict=True))
        return Answer(index, values, factor, grad_out, output)

    return Ready(
        partial(torch.autograd.grad, out, wanted, grad_out, allow_unused=True),
        answer,
    )
