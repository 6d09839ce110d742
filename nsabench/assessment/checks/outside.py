"""Outside: what a process says of its own time must agree with a clock that it cannot reach.

The supervisor hands over inputs that nobody has seen and waits for outputs, which the referee holds
to the oracle. So a call took no longer than what went by, and not much less: if its own clock says
much less, that clock, or what it says, is not what it should be. What a look takes besides, and
other load on the machine, is told by a baseline that gets the same inputs at the same time, in a
process that imports no candidate. Where that was slow, too, nobody is accused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.assessment.checks.finding import Effect, Finding
from nsabench.assessment.checks.limits import Limits
from nsabench.assessment.checks.row import Row
from nsabench.model.measurement import Outside
from nsabench.model.vocabulary import Role, Status

ON_NEW_INPUTS = "on inputs that only the referee knew, "
LOOK_MS = 5.0  # of one look at most: messages, and files that are mapped
CALL_MS = 0.5  # of one call at most: pages that are new, and an output that is copied
AGREES = 1.3  # a time by the supervisor's clock is so many times that by its own at most
IMPOSSIBLE = 5.0  # beyond which what else a machine did is no explanation
AS_MUCH_AGAIN = 3.0  # times what a baseline took beyond its own time
LONG_MS = 1.0  # of a baseline whose time is more than what a call takes besides
BESIDES = 2.0  # what a look takes besides is so many times that of a baseline at most
NEAR = 1.02  # times as long: what differs by less differs by chance


def longest_ms(claim_ms: float, seen: Outside) -> float:
    """What a call may take by the supervisor's clock at most, whose own is `claim_ms`."""
    besides = _besides(seen.calls)
    if seen.baseline_ms is not None and seen.baseline_claim_ms is not None:
        shown = max(seen.baseline_ms - seen.baseline_claim_ms, 0.0)
        besides = min(besides, BESIDES * shown)
    return AGREES * claim_ms + besides


def _besides(calls: int) -> float:
    """What a look takes besides, at most, by the call (ms)."""
    return LOOK_MS / max(calls, 1) + CALL_MS


def is_no_faster(seen: Outside | None) -> str:
    """Why a call is not faster than a baseline, if it is not by the supervisor's clock; or ''."""
    if seen is None or not seen.baseline:
        return ""
    if seen.baseline_ms is None or (seen.in_turn_ms and seen.baseline_in_turn_ms is None):
        return (
            f"the supervisor's clock saw nothing of {seen.baseline} on the same inputs: whether it "
            "is faster is not known"
        )
    took, beside, how = seen.time_ms, seen.baseline_ms, ""
    if NEAR * took < beside:
        if seen.in_turn_ms is None or seen.baseline_in_turn_ms is None:
            return ""
        took, beside, how = seen.in_turn_ms, seen.baseline_in_turn_ms, ", one at a time"
        if NEAR * took < beside:
            return ""
    return (
        f"by the supervisor's clock a call takes {took:.3g} ms on inputs that it had not "
        f"seen{how}, and one of {seen.baseline} {beside:.3g} ms: it is no faster beyond chance"
    )


def check(rows: Sequence[Row], limits: Limits) -> list[Finding]:
    """Candidates whose own time is less than what went by while they worked."""
    return [f for row in rows if row.role is Role.CANDIDATE for f in _of_row(row)]


def _of_row(row: Row) -> Iterator[Finding]:
    seen = row.outside
    claims = [ms for ms in (row.median_ms, row.queued_ms) if ms is not None]
    if row.status is not Status.OK or seen is None or not claims:
        return
    who = row.case_id, row.implementation
    if seen.reason:
        sentence = f"the supervisor's clock saw nothing of it: {seen.reason}"
        yield Finding("outside", Effect.INCONCLUSIVE, sentence, *who)
        return
    claim = min(claims)
    if seen.time_ms <= longest_ms(claim, seen):
        return
    sentence = (
        f"by its own clock a call takes {claim:.3g} ms, and by the supervisor's {seen.time_ms:.3g} "
        f"ms, on inputs that it had not seen ({seen.calls} calls)"
    )
    if _is_accused(seen, claim):
        yield Finding("outside", Effect.IMPLAUSIBLE, sentence, *who)
    else:
        sentence += "; the machine may have been busy meanwhile"
        yield Finding("outside", Effect.INCONCLUSIVE, sentence, *who)


def _is_accused(seen: Outside, claim_ms: float) -> bool:
    """Whether what held up a baseline at the same time explains nothing near it."""
    if seen.baseline_ms is None or seen.baseline_claim_ms is None:
        return False
    beyond = max(seen.baseline_ms - seen.baseline_claim_ms, 0.0)
    load = 1.0
    if seen.baseline_claim_ms >= LONG_MS:
        load = max(seen.baseline_ms / seen.baseline_claim_ms, 1.0)
    excused = IMPOSSIBLE * load * claim_ms + AS_MUCH_AGAIN * beyond
    return seen.time_ms > excused + _besides(seen.calls)
