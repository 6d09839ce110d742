"""What the calls of one implementation return: delivered to the checker, then watched for a while.

An output that was delivered is overwritten with a mark. So no right output stays in this process,
where another implementation could find it. A later write to it erases the mark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nsabench.delivery import Delivery
from nsabench.failure import Failure
from nsabench.model.vocabulary import Status
from nsabench.worker.calls import Answer
from nsabench.worker.checksums import BITS
from nsabench.worker.inputs import InputSets

# What a call returned: one answer a stream.
Answers = list[Answer]
# Hands results over in the order of their form; whether they are right.
Deliver = Callable[[Delivery, InputSets, Sequence[Tensor]], bool]

REJECTED = "its output is wrong"  # the checker knows more, and the supervisor says it
MARK = 0x5A5A


class Outputs:
    """Delivers the outputs of one implementation on one case.

    computes: the op that an alternative computes. keeps_first: whether the first output is kept
    until `finish`.
    """

    def __init__(
        self, name: str, computes: str, sets: InputSets, deliver: Deliver, *, keeps_first: bool
    ) -> None:
        self._name = name
        self._computes = computes
        self._sets = sets
        self._deliver = deliver
        self._keeps_first = keeps_first
        # The sets of the call before, and of the last one.
        self._previous: int | None = None
        self._current: int | None = None
        # The marked outputs of the first and the last call that were checked.
        self._first: list[Tensor] | None = None
        self._kept: list[Tensor] = []

    def expect(self, index: int) -> None:
        """Note that the next call is on the set at this place."""
        self._previous, self._current = self._current, self._sets.ids[index]

    def expect_after(self, before: int | None) -> None:
        """Note that the call before was on the set at this place; None if it is the first call."""
        self._previous = None if before is None else self._sets.ids[before]

    def check(self, answers: Answers, when: str) -> None:
        """Check the results of a call. Raises `Failure` with the first thing that is wrong.

        when: which call it was, for a reason ("in a timed call, ").
        """
        # A call may write past the inputs that it was given, so all sets are checked.
        changed = self._sets.any_changed()
        if changed:
            self._sets.repair()
            raise Failure(Status.WRONG, f"{when}it changed {changed}")
        for answer in answers:
            self._check_one(answer, when)

    def _check_one(self, answer: Answer, when: str) -> None:
        index = answer.index
        given = dict(self._sets.sets[index].tensors)
        if answer.grad_out is not None:
            given["grad_out"] = answer.grad_out
            if not torch.equal(answer.grad_out, self._sets.grads[index] * answer.factor):
                raise Failure(Status.WRONG, f"{when}it changed the gradient it was given")
        returned = answer.results
        results = [
            check_form(name, returned[name], shape, given)
            for name, shape in self._sets.form.results.items()
        ]
        delivery = Delivery(
            implementation=self._name,
            computes=self._computes,
            set=self._sets.ids[index],
            previous=self._previous,
            factor=answer.factor,
            when=when,
        )
        if not self._deliver(delivery, self._sets, results):
            raise Failure(Status.WRONG, REJECTED)

    def keep(self, answers: Answers) -> None:
        """Mark what a call returned, and keep it until the next call that is checked.

        The first output is kept to the end, so that a ring of buffers comes round. Raises `Failure`
        if what was kept is no longer marked.
        """
        self._refuse_overwritten(self._kept)
        self._kept = [_bits(result) for answer in answers for result in answer.results.values()]
        with torch.inference_mode():  # which alone may write to a tensor that was made in it
            for bits in self._kept:
                bits.fill_(MARK)
        if self._first is None and self._keeps_first:
            self._first = self._kept

    def _refuse_overwritten(self, kept: list[Tensor]) -> None:
        if not all(bool((bits == MARK).all()) for bits in kept):
            self._kept, self._first = [], []
            reason = "a later call overwrote what an earlier one had returned"
            raise Failure(Status.WRONG, reason)

    def finish(self) -> None:
        """Raises `Failure` if the last result that was kept, or the first, was written to."""
        self.keep([])
        first, self._first = self._first or [], []
        self._refuse_overwritten(first)


def _bits(result: Any) -> Tensor:
    """Return the elements of a tensor as integers, an expanded one once."""
    elements: Tensor = result.detach().data
    for dim, stride in enumerate(elements.stride()):
        if stride == 0 and elements.shape[dim] > 1:
            elements = elements.narrow(dim, 0, 1)
    return elements.view(BITS[elements.element_size()])


def check_form(name: str, output: Any, shape: Sequence[int], given: dict[str, Tensor]) -> Tensor:
    """Return a result as a plain tensor. Raises `Failure` (wrong) if its form is not the op's.

    name: of the result, for the reason. given: the arguments of the call.
    """
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
        ("layout", output.layout, first.layout),  # a sparse one has no storage
    ):
        if actual != expected:
            raise Failure(Status.WRONG, f"its {name} has {what} {actual}; the op's is {expected}")
    if output.is_neg():  # its memory, which is what the next kernel reads, has the other sign
        raise Failure(Status.WRONG, f"its {name} is a view with the negative bit set")
    storage = output.untyped_storage().data_ptr()
    for argument, tensor in given.items():
        if storage == tensor.untyped_storage().data_ptr():
            raise Failure(Status.WRONG, f"its {name} shares memory with its input {argument}")
    return output
