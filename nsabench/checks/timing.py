"""Check how calls were timed: the timer, the order of work, the clocks, and the host's share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.checks.cases import by_case
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.roofline import DeviceLimits
from nsabench.machine.environment.nvml import POWER_CAP, THROTTLING
from nsabench.model.measurement import Conditions
from nsabench.model.record import Record
from nsabench.model.vocabulary import Mode, Regime, Role, Status

KNOWN_DURATION_TOLERANCE = 0.02
OFTEN = 0.5  # late work in up to this share of samples can be noise of the host
IN_A_BURST = "called one behind the other, "  # begins the worker's reasons about a burst
MORE = 1.25  # a call in a burst that takes over this multiple of its device time waits for the host


def check_timer(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """Does the timer read the right time for a kernel of known duration?"""
    error = limits.known_duration_error
    if error is None or abs(error) <= KNOWN_DURATION_TOLERANCE:
        return []
    sentence = (
        f"the timer is off by {error:+.1%} for a kernel of known duration, and "
        f"{KNOWN_DURATION_TOLERANCE:.0%} is allowed"
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
    """Did the device run at its normal clocks, and unshared, while a case was measured?"""
    cases = by_case(r for r in records if r.median_ms is not None)
    return [finding for case in cases.values() for finding in _check_conditions(case)]


def _check_conditions(case: list[Record]) -> Iterator[Finding]:
    conditions = [record.conditions for record in case]
    for sentence in find_time_doubts(conditions):
        yield Finding("clocks", Effect.INCONCLUSIVE, sentence, case[0].case_id)
    spread = clock_spread(conditions)
    if spread > 1:
        low, high = _clock_range(conditions) or (0, 0)
        sentence = (
            f"the power cap moved the SM clock between {low} and {high} MHz while the case was "
            f"measured: each end of an interval of a ratio is moved by the factor {spread:.3f}"
        )
        yield Finding("clocks", Effect.NOTE, sentence, case[0].case_id)


def find_time_doubts(conditions: Sequence[Conditions]) -> Iterator[str]:
    """Yield why times are unreliable. If clocks are known, `clock_spread` handles a power cap."""
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
    """Return the factor by which both ends of the interval of a ratio must move if the power cap
    lowered the clock: the highest SM clock over the lowest; 1 without a cap or readings."""
    # A call takes a/f + b at the clock f, so its time changes by no more than the clock does.
    clocks = _clock_range(conditions)
    if clocks is None or not any(map(_is_capped, conditions)):
        return 1.0
    return clocks[1] / clocks[0]


def _is_capped(conditions: Conditions) -> bool:
    return POWER_CAP in conditions.clock_event_reasons


def _clock_range(conditions: Sequence[Conditions]) -> tuple[int, int] | None:
    """Return the lowest and the highest SM clock in MHz, without impossible readings.
    None: no reading is left, or an attempt under the power cap has none."""
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


def check_burst(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """The results of back-to-back calls must be right, and complete when the clock stops.

    Otherwise a call could leave work to a thread of the host, outside of the measured time.
    """
    return [
        Finding(
            "burst",
            Effect.NOTE,
            f"right when called alone, but wrong in a burst: {record.reason}",
            *record.key,
        )
        for record in records
        if record.status is Status.WRONG and record.reason.startswith(IN_A_BURST)
    ]


def check_host(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """Does the host take clearly longer for a candidate's call than the device?

    A caller in Python then waits for the host. Device times do not show that, but times of calls
    back to back (the regime `queue`) do.
    """
    findings = []
    for record in records:
        work_ms, queued_ms = worked_ms(record), record.median_in(Regime.QUEUE)
        if record.role is not Role.CANDIDATE and record.caught_by != "host":
            continue
        if work_ms is None or queued_ms is None or queued_ms <= MORE * work_ms:
            continue
        sentence = (
            f"bound by its host: {queued_ms * 1e3:.0f} µs of "
            f"{'replaying' if record.mode is Mode.GRAPH else 'Python'} for "
            f"{work_ms * 1e3:.0f} µs of work"
            f"{f', in {record.launches} launches' if record.launches else ''}"
        )
        findings.append(Finding("host", Effect.NOTE, sentence, *record.key))
    return findings


def worked_ms(record: Record) -> float | None:
    """Return how long the device works on a call; None if that is unknown, as on a CPU."""
    if record.median_ms is None:
        return None
    # If a spin held the device until the call was queued, the time has no gaps between kernels.
    if record.host_us is not None:
        return record.median_ms
    return None if record.kernels_us is None else record.kernels_us / 1e3
