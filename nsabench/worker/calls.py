"""Make one call in each direction: an untimed part, then the timed part.

A step times the implementation and its backward, a backward `torch.autograd.grad` alone. The
gradient of the output is new in each call, so a backward knows only what its forward saved.
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
from nsabench.worker import guard
from nsabench.worker.inputs import InputSets


@dataclass(frozen=True)
class Answer:
    """grad_out: what a backward was given, `factor` times the gradient of the set."""

    index: int
    values: dict[str, Any]
    factor: float = 1.0
    grad_out: Tensor | None = None
    output: Any = None  # of the forward before a backward

    @property
    def results(self) -> dict[str, Any]:
        return self.values if self.grad_out is None else {**self.values, OUTPUT: self.output}


@dataclass(frozen=True)
class Ready:
    run: Callable[[], Any]  # the call as a user's code makes it
    answer: Callable[[Any], Answer]  # takes what `run` returned

    def __call__(self) -> Answer:
        return self.answer(self.run())


def ready(
    item: Implementation, direction: Direction, sets: InputSets, index: int, rng: Random
) -> Ready:
    """Do the untimed part of a call; return the timed part. Raises `Failure` without a backward."""
    options, call = sets.sets[index].options, item.call
    if direction is Direction.FORWARD:
        # New tensors over the same memory, so that attributes set on them are dropped.
        tensors = [t.detach() for t in sets.sets[index].tensors.values()]
        return Ready(
            partial(call, *tensors, **options), lambda output: Answer(index, {OUTPUT: output})
        )
    # New leaves over the same memory, without the hooks and attributes of an earlier call.
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


@dataclass
class Caller:
    """Makes calls of an implementation, or replays of the CUDA graphs that it captured."""

    item: Implementation
    direction: Direction
    sets: InputSets
    rng: Random

    def __post_init__(self) -> None:
        self.graphs: list[tuple[torch.cuda.CUDAGraph, Answer]] = []

    def prepare(self, index: int) -> Ready:
        if not self.graphs:
            return ready(self.item, self.direction, self.sets, index, self.rng)
        graph, answer = self.graphs[index]
        return Ready(graph.replay, lambda returned: answer)

    def capture(self) -> None:
        """Capture a forward on each set of inputs."""
        graphs = []
        with guard.no_garbage():
            for index in range(len(self.sets)):
                graph, call = torch.cuda.CUDAGraph(), self.prepare(index)
                with torch.cuda.graph(graph):
                    answer = call()
                graphs.append((graph, answer))
        self.graphs = graphs

    def poison(self, index: int) -> None:
        """Fill the memory that a replay writes to with NaN."""
        if self.graphs:
            for value in self.graphs[index][1].values.values():
                value.fill_(float("nan"))


def refuse_without_backward(out: Any) -> None:
    if not isinstance(out, Tensor) or not out.requires_grad:
        raise Failure(Status.UNSUPPORTED, "its output has no grad_fn: it has no backward")
