"""Roofline: no time below what the compulsory work takes at the device's ceilings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.assessment.checks.finding import Effect, Finding
from nsabench.assessment.checks.limits import Limits, beaten
from nsabench.assessment.checks.row import Row


def check(rows: Sequence[Row], limits: Limits) -> list[Finding]:
    """Records whose time is impossible whatever the code did."""
    return [
        Finding("roofline", Effect.IMPLAUSIBLE, sentence, row.case_id, row.implementation)
        for row in rows
        for sentence in impossible(row, limits)
    ]


def impossible(row: Row, limits: Limits) -> Iterator[str]:
    """Why the record's time cannot be; nothing where it can."""
    time = row.timed_ms
    if time is None:
        return
    bound = beaten(row, limits)
    if bound is not None:
        yield (
            f"{time:.3g} ms is {bound.ms / time:.2f} times faster than possible: "
            f"{bound.why} take {bound.ms:.3g} ms ({limits.source})"
        )
    floor = limits.timer_floor_ms
    if floor is not None and time * limits.margin < floor:
        yield f"{time:.3g} ms is below the {floor:.3g} ms that the timer reads for an empty call"
