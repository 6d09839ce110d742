"""Roofline: no time is shorter than the compulsory work takes at the device's ceilings.

Back-to-back calls are also checked. A call that cheats by waiting for the device may be slow enough
to look possible on its own, but in a burst its wait is hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Bound, Limits, beaten, beaten_in_a_burst
from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime


def check(rows: Sequence[Record], limits: Limits) -> list[Finding]:
    return [
        Finding("roofline", Effect.IMPLAUSIBLE, sentence, *row.key)
        for row in rows
        for sentence in impossible(row, limits)
    ]


def impossible(row: Record, limits: Limits) -> Iterator[str]:
    """Yield the reasons why a record's time is impossible."""
    time, queued = row.median_ms, row.median_in(Regime.QUEUE)
    if time is None:
        return
    if bound := beaten(row, limits):
        yield _describe(f"{time:.3g} ms", time, bound, limits)
    elif queued is not None and (bound := beaten_in_a_burst(row, limits)):
        yield _describe(f"{queued:.3g} ms a call, one behind the other,", queued, bound, limits)
    floor = limits.timer_floor_ms
    if floor is not None and time * limits.margin < floor:
        yield f"{time:.3g} ms is below the {floor:.3g} ms that the timer reads for an empty call"


def _describe(what: str, time_ms: float, bound: Bound, limits: Limits) -> str:
    return (
        f"{what} is {bound.ms / time_ms:.2f} times faster than possible: "
        f"{bound.why} take {bound.ms:.3g} ms ({limits.source})"
    )
