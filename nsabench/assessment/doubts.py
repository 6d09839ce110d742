"""Why a time decides nothing, whatever it is held against: the timer was off, or the device was
not its normal self, or not alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nsabench.assessment.checks import timer
from nsabench.assessment.checks.clocks import disturbances
from nsabench.assessment.checks.finding import Effect, Finding
from nsabench.assessment.checks.limits import Limits
from nsabench.assessment.checks.row import Row
from nsabench.machine import datasheet
from nsabench.model.journal import Contents
from nsabench.model.vocabulary import PassName

CHECKS = ("timer", "clocks")  # those of the clock, and not of what it was held against


def of_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Those among what the checks found."""
    return [f for f in findings if f.check in CHECKS and f.effect is Effect.INCONCLUSIVE]


def about(row: Row, doubts: Sequence[Finding]) -> str:
    """What is against the time of this record, as its column says it."""
    return "; ".join(f.sentence for f in doubts if f.concerns(row))


@dataclass(frozen=True)
class Doubts:
    """What a journal says against the times of its run, and of some of its cases."""

    of_run: str = ""
    of_case: dict[str, str] = field(default_factory=dict)

    def about(self, case_id: str) -> str:
        return self.of_run or self.of_case.get(case_id, "")


def of_journal(contents: Contents) -> Doubts:
    """For runs whose records were written before they had a column for it."""
    sentences = [f.sentence for f in of_findings(timer.check([], limits(contents)))]
    of_case = {
        entry.case_id: "; ".join(disturbances(entry.conditions_that_count))
        for entry in contents.of(PassName.FIRST_LOOK)
    }
    return Doubts("; ".join(sentences), of_case)


def limits(contents: Contents) -> Limits:
    """What the device could do at most, by the run's own measure, beside its data sheet."""
    sheet = datasheet.known(contents.headers[0].described.device.name or "")
    return Limits.measured(contents.ceilings, Limits.of_sheet(sheet) if sheet else None)
