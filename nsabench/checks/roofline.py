"""Roofline: no time below what the compulsory work takes at the device's ceilings.

Calls one behind the other are held to it, too. Who waits for the device, to look up what it knows,
is slow alone on a slow host and may then pass for possible; among others its wait is hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Bound, Limits, beaten, beaten_in_a_burst
from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime


def check(rows: Sequence[Record], limits: Limits) -> list[Finding]:
    """Records whose time is impossible whatever the code did."""
    return [
        Finding("roofline", Effect.IMPLAUSIBLE, sentence, *row.key)
        for row in rows
        for sentence in impossible(row, limits)
    ]


def impossible(row: Record, limits: Limits) -> Iterator[str]:
    """Why the record's time cannot be; nothing where it can."""
    time, queued = row.median_ms, row.median_in(Regime.QUEUE)
    if time is None:
        return
    if bound := beaten(row, limits):
        yield _sentence(f"{time:.3g} ms", time, bound, limits)
    elif queued is not None and (bound := beaten_in_a_burst(row, limits)):
        yield _sentence(f"{queued:.3g} ms a call, one behind the other,", queued, bound, limits)
    floor = limits.timer_floor_ms
    if floor is not None and time * limits.margin < floor:
        yield f"{time:.3g} ms is below the {floor:.3g} ms that the timer reads for an empty call"


def _sentence(what: str, time_ms: float, bound: Bound, limits: Limits) -> str:
    return (
        f"{what} is {bound.ms / time_ms:.2f} times faster than possible: "
        f"{bound.why} take {bound.ms:.3g} ms ({limits.source})"
    )
