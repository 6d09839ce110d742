"""Check how a run was timed: its timer, the order of the work, and the device's clocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.checks.cases import by_case
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.roofline import DeviceLimits
from nsabench.machine.environment.nvml import POWER_CAP, THROTTLING
from nsabench.model.measurement import Conditions
from nsabench.model.record import Record

KNOWN_DURATION_TOLERANCE = 0.02
OFTEN = 0.5  # share of samples; a few late ones can be noise of the host


def check_timer(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """Does this run's clock read a known duration right?"""
    error = limits.known_duration_error
    if error is None or abs(error) <= KNOWN_DURATION_TOLERANCE:
        return []
    sentence = (
        f"the timer reads a kernel of known duration {error:+.1%} off, over the "
        f"{KNOWN_DURATION_TOLERANCE:.0%} allowed"
    )
    return [Finding("timer", Effect.INCONCLUSIVE, sentence)]


def check_ordering(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """The work of a call must end before the caller's stream goes on."""
    findings = []
    for record in records:
        escaped = record.observation.samples.escaped_ms if record.observation else []
        if record.median_ms is None or not escaped:
            continue
        share = sum(ms > 0 for ms in escaped) / len(escaped)
        if share > OFTEN:
            sentence = (
                f"in {share:.0%} of the samples work went on after the caller's stream was done: "
                f"the next operation on that stream would read an unfinished output"
            )
            findings.append(Finding("ordering", Effect.WRONG, sentence, *record.key))
    return findings


def check_clocks(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """Was the device at its normal clocks, and unshared, while a case was measured?"""
    cases = by_case(r for r in records if r.median_ms is not None)
    return [finding for case in cases.values() for finding in _check_conditions(case)]


def _check_conditions(case: list[Record]) -> Iterator[Finding]:
    conditions = [record.conditions for record in case]
    for sentence in find_disturbances(conditions):
        yield Finding("clocks", Effect.INCONCLUSIVE, sentence, case[0].case_id)
    spread = clock_spread(conditions)
    if spread > 1:
        low, high = _clock_range(conditions) or (0, 0)
        sentence = (
            f"the power cap moved the SM clock between {low} and {high} MHz while the case was "
            f"measured: the interval of each ratio reaches {spread:.3f} times as far"
        )
        yield Finding("clocks", Effect.NOTE, sentence, case[0].case_id)


def find_disturbances(conditions: Sequence[Conditions]) -> Iterator[str]:
    """Yield why times are unreliable. `clock_spread` covers a power cap with known clocks."""
    reasons = {x for c in conditions for x in c.clock_event_reasons} & THROTTLING
    clocks = _clock_range(conditions)
    if reasons - {POWER_CAP} or (reasons and clocks is None):
        named = ", ".join(sorted(reasons))
        sentence = f"the device was throttled while the case was measured: {named}"
        if clocks is not None:
            sentence += f" (SM clock {clocks[0]} to {clocks[1]} MHz)"
        yield sentence
    others = max((c.competing_processes for c in conditions), default=0)
    if others:
        noun = "process" if others == 1 else "processes"
        yield f"{others} other {noun} computed on the device while the case was measured"


def clock_spread(conditions: Sequence[Conditions]) -> float:
    """Return the factor by which the interval of a ratio must widen if the power cap lowered the
    clock: the highest SM clock over the lowest, or 1 without a cap."""
    # A call takes a/f + b at the clock f, so its time changes by no more than the clock does.
    clocks = _clock_range(conditions)
    if clocks is None or not any(map(_is_capped, conditions)):
        return 1.0
    return clocks[1] / clocks[0]


def _is_capped(conditions: Conditions) -> bool:
    return POWER_CAP in conditions.clock_event_reasons


def _clock_range(conditions: Sequence[Conditions]) -> tuple[int, int] | None:
    """Return the lowest and the highest SM clock in MHz, or None if they are unknown or one is
    missing under the power cap. Values from a worker that cannot be clocks are ignored."""
    ranges = []
    for c in conditions:
        low, high = c.sm_clock_mhz_min or 0, c.sm_clock_mhz_max or 0
        if 0 < low <= high:
            ranges.append((low, high))
        elif _is_capped(c):
            return None
    if not ranges:
        return None
    return min(low for low, _ in ranges), max(high for _, high in ranges)
