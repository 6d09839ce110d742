"""What the calls of an arm returned, held to the oracle and kept for a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsabench.assessment.checks.parity import OUTPUT
from nsabench.execution.failure import Failure
from nsabench.execution.worker import parity
from nsabench.execution.worker.calls import Answer
from nsabench.execution.worker.checksums import checksum
from nsabench.execution.worker.inputs import InputSets
from nsabench.execution.worker.parity import Errors, WrongValues
from nsabench.model.case import Case
from nsabench.model.vocabulary import Status

# What a call returned: one answer a stream.
Answers = list[Answer]
Kept = list[tuple[dict[str, Any], dict[str, Tensor]]]


@dataclass(frozen=True)
class Wrong:
    """A result that is wrong, or may be found so beside the baselines, for the diagnosis, with what
    it was made from: other arms go on exchanging the sets. expected: what is right. previous: what
    the call before was expected to return."""

    name: str
    result: Tensor
    seed: int  # of the inputs
    expected: Tensor
    previous: Tensor | None


class Comparison:
    """One implementation's outputs beside the oracle's: the worst errors of all calls that were
    looked at, and the first result that is wrong.

    keeps_first: whether what the first call returned is held until `finish`.
    """

    def __init__(self, case: Case, sets: InputSets, *, keeps_first: bool) -> None:
        self.errors: Errors | None = None
        self.wrong: Wrong | None = None
        self._case = case
        self._sets = sets
        self._keeps_first = keeps_first
        # What the call before, and the last one, were expected to return.
        self._previous: dict[str, Tensor] = {}
        self._expected: dict[str, Tensor] = {}
        # What the first and the last call that were looked at returned, and the sums of it.
        self._first: Kept | None = None
        self._kept: Kept = []

    def expect(self, index: int) -> None:
        """The next call will be on this set of inputs."""
        self._previous, self._expected = self._expected, self._sets.expected[index]

    def expect_after(self, before: int | None) -> None:
        """The call before was on this set of inputs; None: there was none."""
        self._previous = {} if before is None else self._sets.expected[before]

    def compare(self, answers: Answers, when: str) -> None:
        """Hold the results to the oracle. Raises `Failure` for whichever is wrong first.

        `errors` are the largest of all calls that were looked at, whenever that was: a kernel must
        not compute more exactly while it is watched closely.
        """
        # Of all sets: what is written past one's own inputs is somebody else's.
        changed = self._sets.any_changed()
        if changed:
            self._sets.repair()
            raise Failure(Status.WRONG, f"{when}it changed {changed}")
        errors = [e for answer in answers for e in self._compare_one(answer, when)]
        self.errors = Errors.worst([*errors, *([self.errors] if self.errors else [])])

    def _compare_one(self, answer: Answer, when: str) -> list[Errors]:
        index = answer.index
        given = dict(self._sets.sets[index].tensors)
        if answer.grad_out is not None:
            given["grad_out"] = answer.grad_out
            if not torch.equal(answer.grad_out, self._sets.grads[index] * answer.factor):
                raise Failure(Status.WRONG, f"{when}it changed the gradient it was given")
        errors = [
            self._compare_value(answer, name, answer.values[name], expected, given, when)
            for name, expected in self._sets.expected[index].items()
        ]
        if answer.grad_out is not None:
            # A forward may return what its backward has no use for.
            expected = self._sets.outputs[index]
            errors.append(self._compare_value(answer, OUTPUT, answer.output, expected, given, when))
        return errors

    def _compare_value(
        self,
        answer: Answer,
        name: str,
        value: Any,
        expected: Tensor,
        given: dict[str, Tensor],
        when: str,
    ) -> Errors:
        factor = 1.0 if name == OUTPUT else answer.factor
        tensor = parity.check_form(name, value, expected, given)
        try:
            legal = self._sets.legal[answer.index] if name == OUTPUT else None
            found = parity.check_values(name, tensor, expected, self._case, factor, legal)
        except WrongValues as error:
            self.errors = error.errors
            self.wrong = self._wrong(name, tensor, expected * factor, answer)
            raise WrongValues(when + error.reason, error.errors) from None
        # Whether it is wrong is known beside the baselines only, and then it is too late.
        if self.wrong is None and not parity.is_explained(found, self._case):
            self.wrong = self._wrong(name, tensor.clone(), expected * factor, answer)
        return found

    def _wrong(self, name: str, tensor: Tensor, expected: Tensor, answer: Answer) -> Wrong:
        previous = self._previous.get(name)
        if previous is not None:
            previous = previous.clone()
        return Wrong(name, tensor, self._sets.seed(answer.index), expected, previous)

    def keep(self, answers: Answers) -> None:
        """Keep what a call returned until the next one that is looked at, and the first one's
        to the end: a ring of buffers comes round meanwhile.

        Raises `Failure` when what was kept is no longer what it was: somebody who keeps a result
        must not find a later one in it.
        """
        self._refuse_overwritten(self._kept)
        self._kept = [(a.results, checksum(a.results)) for a in answers]
        if self._first is None and self._keeps_first:
            self._first = self._kept

    def _refuse_overwritten(self, kept: Kept) -> None:
        for values, sums in kept:
            now = checksum(values)
            if not all(torch.equal(now[name], sums[name]) for name in sums):
                self._kept, self._first = [], []
                reason = "a later call overwrote what an earlier one had returned"
                raise Failure(Status.WRONG, reason)

    def finish(self) -> None:
        """Raises `Failure` when the last result that was kept, or the first, is not what it was."""
        self.keep([])
        first, self._first = self._first or [], []
        self._refuse_overwritten(first)
