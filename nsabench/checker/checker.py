"""Compares what implementations return with the oracle, and says what wrong results look like."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nsabench import ops
from nsabench.checker import errors
from nsabench.checker.diagnosis import diagnose, diagnose_gradient
from nsabench.checker.errors import Errors, WrongValues
from nsabench.checker.messages import Checked, Concluded, Judged, NoOracle, Prepare, Prepared
from nsabench.checker.oracle import Oracles
from nsabench.delivery import OUTPUT, Delivery, Mailbox, draw
from nsabench.errors import UsageError
from nsabench.failure import Failure
from nsabench.model.vocabulary import Status


@dataclass(frozen=True)
class Suspect:
    """A result that is wrong, or that the baselines may show to be wrong.

    result, right, previous: what it is, what it should be, and what the call before was to return,
    if there was one.
    """

    name: str
    result: Tensor
    right: Tensor
    previous: Tensor | None
    set: int


@dataclass
class Findings:
    """What was found of one implementation so far: the largest errors of all its calls."""

    computes: str
    reason: str = ""
    errors: Errors | None = None
    suspect: Suspect | None = None


@dataclass
class Checker:
    """Judges one case at a time: `prepare`, then `check` for each delivery, then `conclude`."""

    device: str
    mailbox: Mailbox
    _oracles: dict[str, Oracles] = field(default_factory=dict)
    findings: dict[str, Findings] = field(default_factory=dict)

    def prepare(self, request: Prepare) -> Prepared:
        """Compute the oracles of a case, and map as much memory as the largest results take."""
        self._forget()
        failures = {}
        for computes in request.computes:
            try:
                case = ops.computed(request.case, computes)
                self._oracles[computes] = Oracles(case, request.seeds, self.device)
            except UsageError as error:
                failures[computes] = NoOracle(status=Status.UNSUPPORTED, reason=str(error))
            except Failure as failure:
                failures[computes] = NoOracle(status=failure.status, reason=failure.reason)
            except (MemoryError, torch.OutOfMemoryError) as error:
                reason = f"its oracle does not fit into memory: {str(error).splitlines()[0]}"
                failures[computes] = NoOracle(status=Status.OUT_OF_MEMORY, reason=reason)
        forms = {computes: oracles.form for computes, oracles in self._oracles.items()}
        self.mailbox.map(max((form.nbytes for form in forms.values()), default=0))
        self._give_back()
        return Prepared(forms=forms, failures=failures)

    def check(self, delivery: Delivery) -> Checked:
        """Compare the results that lie in the mailbox with the oracle of their set."""
        oracles = self._oracles[delivery.computes]
        findings = self.findings.setdefault(delivery.implementation, Findings(delivery.computes))
        results = self.mailbox.take(oracles.form, self.device)
        found = []
        try:
            for name, result in results.items():
                found.append(self._compare(oracles, findings, delivery, name, result))
        except WrongValues as wrong:
            findings.reason = findings.reason or delivery.when + str(wrong)
            findings.errors = wrong.errors
            return Checked(right=False)
        findings.errors = Errors.worst([*found, *([findings.errors] if findings.errors else [])])
        return Checked(right=True)

    def _compare(
        self, oracles: Oracles, findings: Findings, delivery: Delivery, name: str, result: Tensor
    ) -> Errors:
        """Raises `WrongValues`."""
        factor = 1.0 if name == OUTPUT else delivery.factor
        expected = oracles.expected[delivery.set][name]
        legal = oracles.legal[delivery.set] if name == OUTPUT else None

        def suspect() -> Suspect:
            before = delivery.previous
            previous = None if before is None else oracles.expected[before][name]
            return Suspect(name, result, expected * factor, previous, delivery.set)

        try:
            found = errors.check_values(name, result, expected, oracles.case, factor, legal)
        except WrongValues:
            findings.suspect = suspect()
            raise
        # Whether such a result is wrong is known beside the baselines only: then it is too late.
        if findings.suspect is None and not errors.is_explained(found, oracles.case):
            findings.suspect = suspect()
        return found

    def conclude(self) -> Concluded:
        """Say what was found of each implementation of the case, and forget the case."""
        judged = {name: self._judged(findings) for name, findings in self.findings.items()}
        self._forget()
        self.mailbox.close()
        return Concluded(judged=judged)

    def _judged(self, findings: Findings) -> Judged:
        judged = Judged(
            reason=findings.reason,
            diagnosis=self._diagnosis(findings),
        )
        worst = findings.errors
        if worst is None:
            return judged
        compared, left_out = worst.rows or (None, None)
        return judged.model_copy(
            update={
                "mae": _finite(worst.mae),
                "max_abs_err": _finite(worst.max_abs_err),
                "rel_l2": _finite(worst.rel_l2),
                "worst_row": _finite(worst.worst_row),
                "worst_row_at": worst.worst_row_at,
                "rows_compared": compared,
                "rows_left_out": left_out,
            }
        )

    def _diagnosis(self, findings: Findings) -> str:
        suspect, findings.suspect = findings.suspect, None
        if suspect is None:
            return ""
        oracles = self._oracles[findings.computes]
        inputs, grad_out = draw(oracles.case, oracles.seeds[suspect.set], self.device)
        if suspect.name == OUTPUT:
            return diagnose(oracles.op, inputs, suspect.result, suspect.previous)
        assert grad_out is not None
        return diagnose_gradient(
            oracles.op,
            inputs,
            grad_out,
            suspect.name,
            suspect.result,
            suspect.right,
            suspect.previous,
        )

    def _forget(self) -> None:
        self._oracles.clear()
        self.findings.clear()
        self._give_back()

    def _give_back(self) -> None:
        """Leave the device's memory to the worker."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
