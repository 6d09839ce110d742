"""One call in each direction: the part before it, which is not timed, and the timed part.

- Forward: the implementation.
- Step: the implementation and its backward, both timed.
- Backward: `torch.autograd.grad` alone. The implementation runs before it, untimed, as the forward.

The gradient of the output is a new tensor of new values each time. So a backward knows beforehand
only what its forward may save for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from nsabench.delivery import FACTORS, OUTPUT
from nsabench.failure import Failure
from nsabench.model.vocabulary import Direction, Status
from nsabench.registry import Implementation
from nsabench.worker.inputs import InputSets


@dataclass(frozen=True)
class Answer:
    """What a call on a set of inputs returned, by name.

    In a backward, grad_out: what it was given, `factor` times the gradient of the set. output: what
    its forward returned.
    """

    index: int
    values: dict[str, Any]
    factor: float = 1.0
    grad_out: Tensor | None = None
    output: Any = None

    @property
    def results(self) -> dict[str, Any]:
        return self.values if self.grad_out is None else {**self.values, OUTPUT: self.output}


@dataclass(frozen=True)
class Ready:
    """run: the call as a user's code makes it. answer: turns what it returned into an `Answer`."""

    run: Callable[[], Any]
    answer: Callable[[Any], Answer]

    def __call__(self) -> Answer:
        return self.answer(self.run())


def ready(
    item: Implementation, direction: Direction, sets: InputSets, index: int, rng: Random
) -> Ready:
    """Do what is not timed of a call on a set of inputs; return the call.

    Raises `Failure` (unsupported) if an implementation without a backward is asked for one.
    """
    options, call = sets.sets[index].options, item.call
    if direction is Direction.FORWARD:
        # Tensors of its own over the same memory: what it does to a tensor itself stays with it.
        tensors = [t.detach() for t in sets.sets[index].tensors.values()]
        return Ready(
            partial(call, *tensors, **options), lambda output: Answer(index, {OUTPUT: output})
        )
    # New leaves over the same memory: nothing that was hung on them in an earlier call is left.
    leaves = {
        name: t.detach().requires_grad_(name in sets.wanted)
        for name, t in sets.sets[index].tensors.items()
    }
    wanted = [leaves[name] for name in sets.wanted]
    factor = rng.choice(FACTORS)
    grad_out = sets.grads[index] * factor

    def answer(gradients: tuple[Any, ...], output: Tensor) -> Answer:
        values = dict(zip(sets.results, gradients, strict=True))
        return Answer(index, values, factor, grad_out, output)

    if direction is Direction.STEP:

        def run() -> tuple[Any, tuple[Any, ...]]:
            out = call(*leaves.values(), **options)
            refuse_without_backward(out)
            return out, torch.autograd.grad(out, wanted, grad_out, allow_unused=True)

        return Ready(run, lambda returned: answer(returned[1], returned[0].detach()))
    out = call(*leaves.values(), **options)
    refuse_without_backward(out)
    output = out.detach()  # here, and not in the time of the call
    return Ready(
        partial(torch.autograd.grad, out, wanted, grad_out, allow_unused=True),
        partial(answer, output=output),
    )


def refuse_without_backward(out: Any) -> None:
    """Raises `Failure` (unsupported)."""
    if not isinstance(out, Tensor) or not out.requires_grad:
        raise Failure(Status.UNSUPPORTED, "its output has no grad_fn: it has no backward")
