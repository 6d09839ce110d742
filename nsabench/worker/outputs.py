"""Deliver the outputs of one implementation to the checker, then watch them for a while.

A delivered output is overwritten with a mark. So no right output stays in this process, where
another implementation could find it, and a later write to it is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from nsabench.delivery import Delivery
from nsabench.failure import Failure
from nsabench.model.vocabulary import Role, Status
from nsabench.registry import Implementation
from nsabench.worker.calls import Answer
from nsabench.worker.inputs import BITS, InputSets

# Takes results in the order of their form, and returns whether they are right.
Deliver = Callable[[Delivery, InputSets, Sequence[Tensor]], bool]

REJECTED = "its output is wrong"  # the supervisor adds the reason of the checker
MARK = 0x5A5A


@dataclass
class Outputs:
    """Delivers the outputs of one implementation."""

    item: Implementation
    sets: InputSets
    deliver: Deliver
    rng: Random

    def __post_init__(self) -> None:
        # The sets of the last two calls.
        self._previous: int | None = None
        self._current: int | None = None
        # The marked results of the last checked call, of the first, and of one in between.
        self._kept: list[Tensor] = []
        self._first: list[Tensor] = []
        self._chosen: list[Tensor] = []
        self._count = 0  # of checked calls that `_chosen` was chosen from

    def expect(self, index: int) -> None:
        self._previous, self._current = self._current, self.sets.ids[index]

    def expect_after(self, before: int | None) -> None:
        self._previous = None if before is None else self.sets.ids[before]

    def check(self, answer: Answer, when: str) -> None:
        """Raise `Failure` for the first error. when: names the call in a reason."""
        # All sets, since a call may write past its own inputs.
        changed = self.sets.find_change()
        if changed:
            self.sets.repair()
            raise Failure(Status.WRONG, f"{when}it changed {changed}")
        index = answer.index
        given = dict(self.sets.sets[index].tensors)
        if answer.grad_out is not None:
            given["grad_out"] = answer.grad_out
            if not torch.equal(answer.grad_out, self.sets.grads[index] * answer.factor):
                raise Failure(Status.WRONG, f"{when}it changed the gradient it was given")
        returned = answer.results
        results = [
            check_form(name, returned[name], shape, given)
            for name, shape in self.sets.form.results.items()
        ]
        delivery = Delivery(
            implementation=self.item.name,
            computes=self.item.computes,
            set=self.sets.ids[index],
            previous=self._previous,
            probe=self.sets.probe,
            factor=answer.factor,
            when=when,
        )
        if not self.deliver(delivery, self.sets, results):
            raise Failure(Status.WRONG, REJECTED)

    def keep(self, answer: Answer) -> None:
        """Mark and keep results. Raises `Failure` if the ones kept before have lost their mark."""
        self._refuse_overwritten(self._kept)
        self._kept = [_bits(result) for result in answer.results.values()]
        with torch.inference_mode():  # only there may a tensor made in it be written to
            for bits in self._kept:
                bits.fill_(MARK)
        # Controls are many, and their results are large. None of them has a ring of buffers.
        if self.item.role is Role.CONTROL:
            return
        if not self._first:
            self._first = self._kept
            return
        self._count += 1
        if self.rng.randrange(self._count) == 0:  # each is chosen with the same probability
            self._refuse_overwritten(self._chosen)
            self._chosen = self._kept

    def _refuse_overwritten(self, kept: list[Tensor]) -> None:
        if not all(bool((bits == MARK).all()) for bits in kept):
            self._kept, self._first, self._chosen = [], [], []
            reason = "a later call overwrote what an earlier one had returned"
            raise Failure(Status.WRONG, reason)

    def finish(self) -> None:
        """Raise `Failure` if a kept output was overwritten."""
        kept = [*self._kept, *self._first, *self._chosen]
        self._kept, self._first, self._chosen = [], [], []
        self._refuse_overwritten(kept)


def _bits(result: Any) -> Tensor:
    """Return the elements of a tensor as integers. An expanded dimension has length 1."""
    elements: Tensor = result.detach().data
    for dim, stride in enumerate(elements.stride()):
        if stride == 0 and elements.shape[dim] > 1:
            elements = elements.narrow(dim, 0, 1)
    return elements.view(BITS[elements.element_size()])


def check_form(name: str, output: Any, shape: Sequence[int], given: dict[str, Tensor]) -> Tensor:
    """Return a result as a plain tensor. Raises `Failure` (wrong) if its form is not the op's."""
    if output is None:
        raise Failure(Status.WRONG, f"it gives no {name}")
    if type(output) is not torch.Tensor:
        raise Failure(
            Status.WRONG,
            f"it returned as {name} a {type(output).__name__}, not a plain torch.Tensor",
        )
    first = next(iter(given.values()))
    for what, actual, expected in (
        ("shape", tuple(output.shape), tuple(shape)),
        ("dtype", output.dtype, first.dtype),
        ("device", output.device.type, first.device.type),
        ("layout", output.layout, first.layout),  # a sparse tensor has no storage
    ):
        if actual != expected:
            raise Failure(Status.WRONG, f"its {name} has {what} {actual}; the op's is {expected}")
    if output.is_neg():  # a kernel that reads its memory would see the other sign
        raise Failure(Status.WRONG, f"its {name} is a view with the negative bit set")
    storage = output.untyped_storage().data_ptr()
    for argument, tensor in given.items():
        if storage == tensor.untyped_storage().data_ptr():
            raise Failure(Status.WRONG, f"its {name} shares memory with its input {argument}")
    return output
