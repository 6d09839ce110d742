"""Why a time decides nothing, whatever it is held against: the timer was off, the device was not
its normal self, or not alone, or the time does not grow with the work."""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.checks.finding import Effect, Finding, Recorded
from nsabench.checks.limits import Limits
from nsabench.machine import datasheet
from nsabench.model.log import Session

CHECKS = (
    "timer",
    "clocks",
    "scaling",
    "canary",
)  # those of a time, and not of what it was held against


def of_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Those among what the checks found."""
    return [f for f in findings if f.check in CHECKS and f.effect is Effect.INCONCLUSIVE]


def about(record: Recorded, doubts: Sequence[Finding]) -> str:
    """What is against the time of this record, as its column says it."""
    return "; ".join(f.sentence for f in doubts if f.concerns(record))


def limits(session: Session) -> Limits:
    """What the device could do at most, by the run's own measure, beside its data sheet."""
    sheet = datasheet.known(session.described.device.name or "")
    return Limits.measured(session.ceilings, Limits.of_sheet(sheet) if sheet else None)
