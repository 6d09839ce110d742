"""Judge times by the work done in them: impossible times, cliffs, flat times, slow baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nsabench import labels
from nsabench.checks.cases import best_baseline, by_case, length_series, length_text
from nsabench.checks.finding import Effect, Finding
from nsabench.machine.datasheet import Sheet
from nsabench.model.measurement import Ceilings
from nsabench.model.record import Record
from nsabench.model.vocabulary import DType, Regime, Role

# Memory and core clocks are often set a few percent above the data sheet's.
OVERCLOCKING = 1.05

# A time leaps if it grows by over `LEAP` times the square of the work's growth. On an H200 that
# factor is 15 to 44 if FlexAttention falls back to uncompiled code, and at most 2 otherwise.
LEAP = 8.0
IN_THE_RUNNING = 2.0  # a baseline that was this near the best before its leap might win

GROWTH_OF_WORK = 4.0
FLAT = 1.1  # a time that grows by less while the work grows by `GROWTH_OF_WORK` or more is flat
FILLED = 0.5  # a flat time is suspicious if its work alone takes at least this share of the time
# Launches and the latency of the first loads can hide work that takes less time than this.
LAUNCH_FLOOR_MS = 0.02

SLOW = 3.0  # an implementation is slow if it takes over this multiple of the best baseline's time
FIXED_COST_MS = 0.2  # granted for launches of an eager baseline, or for its host code on a CPU
FAR_FROM_ROOFLINE = 30.0
HIDDEN = 0.5  # calls seem to wait for the device if spins hid the gaps of less than this share


@dataclass(frozen=True)
class DeviceLimits:
    """Ceilings of one device, measured or from a data sheet. None: unknown, so no bound follows."""

    source: str = "no ceilings"
    memory_gb_s: float | None = None
    l2_gb_s: float | None = None
    l2_bytes: int = 0  # bytes of inputs that may be in L2 before a call; 0: the timer flushes L2
    tflop_s: Mapping[str, float] = field(default_factory=dict)
    timer_floor_ms: float | None = None
    known_duration_error: float | None = None
    # A time is impossible if it beats a bound by more than this factor. A copy measures the
    # bandwidth, and reading is up to a tenth faster.
    margin: float = 1.1

    @classmethod
    def from_sheet(cls, sheet: Sheet) -> DeviceLimits:
        """Return the ceilings of a data sheet. Others' timers may have left the inputs in L2."""
        return cls(
            source=f"data sheet of the {sheet.name}",
            memory_gb_s=sheet.memory_gb_s,
            l2_bytes=sheet.l2_mib << 20,
            tflop_s={"float16": sheet.float16, "bfloat16": sheet.bfloat16},
            margin=OVERCLOCKING,
        )

    @classmethod
    def from_run(cls, ceilings: Ceilings) -> DeviceLimits:
        return cls(
            source="measured in this run",
            memory_gb_s=ceilings.copy_gb_s,
            l2_gb_s=ceilings.l2_gb_s,
            tflop_s=ceilings.tflop_s,
            timer_floor_ms=ceilings.timer_floor_ms,
            known_duration_error=ceilings.known_duration_error,
        )


@dataclass(frozen=True)
class Bound:
    ms: float
    why: str


def least_time(
    record: Record, limits: DeviceLimits, *, l2_bytes: int | None = None, warm: bool = False
) -> Bound | None:
    """Return the greatest lower bound on the time of a call; None if no ceiling is known.

    l2_bytes: bytes that L2 may hold, by default `limits.l2_bytes`. warm: all inputs may be in L2.
    """
    in_l2 = limits.l2_bytes if l2_bytes is None else l2_bytes
    resident = record.bytes_min if warm else min(in_l2, record.bytes_min)
    bounds = []
    if limits.memory_gb_s is not None:
        beyond = record.bytes_min - resident
        hits = f" that a full L2 of {resident / 1e6:.0f} MB leaves" if resident else ""
        why = f"the {beyond / 1e6:.1f} MB{hits} at {limits.memory_gb_s:.0f} GB/s"
        bounds.append(Bound(beyond / limits.memory_gb_s / 1e6, why))
    if resident and limits.l2_gb_s is not None:
        why = f"{record.bytes_min / 1e6:.1f} MB through an L2 of {limits.l2_gb_s:.0f} GB/s"
        bounds.append(Bound(record.bytes_min / limits.l2_gb_s / 1e6, why))
    rate = limits.tflop_s.get(record.dtype)
    if rate is not None:
        why = f"{record.flops / 1e9:.2f} GFLOP at {rate:.0f} TFLOP/s"
        bounds.append(Bound(record.flops / rate / 1e9, why))
    return max(bounds, key=lambda bound: bound.ms, default=None)


def find_beaten(record: Record, limits: DeviceLimits, regime: Regime | None = None) -> Bound | None:
    """Return the lower bound that a time beats by more than the margin, or None."""
    # Nothing is flushed between calls back to back (the regime `queue`), so L2 may hold all inputs.
    time_ms = record.median_in(regime or record.regime)
    allowed = _allow_tensor_cores(limits) if record.dtype is DType.FLOAT32 else limits
    bound = least_time(record, allowed, warm=regime is Regime.QUEUE)
    if bound is None or time_ms is None or time_ms * limits.margin >= bound.ms:
        return None
    return bound


def _allow_tensor_cores(limits: DeviceLimits) -> DeviceLimits:
    """Raise the float32 rate to what tensor cores could reach, which the run does not measure."""
    sixteen = [rate for dtype, rate in limits.tflop_s.items() if dtype != DType.FLOAT32]
    full_precision = limits.tflop_s.get(DType.FLOAT32)
    if full_precision is None or not sixteen:
        return limits
    # Three TF32 products make one in float32, at half the rate of the 16-bit formats.
    rates = {**limits.tflop_s, DType.FLOAT32: max(full_precision, max(sixteen) / 2 / 3)}
    return replace(limits, tflop_s=rates)


def check_roofline(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """No time may be shorter than the compulsory work takes at the device's ceilings.

    If single calls pass, calls back to back are checked, since a single call may contain waits.
    """
    return [
        Finding("roofline", Effect.IMPLAUSIBLE, sentence, *record.key)
        for record in records
        for sentence in find_impossible(record, limits)
    ]


def find_impossible(record: Record, limits: DeviceLimits) -> Iterator[str]:
    time_ms, queued_ms = record.median_ms, record.median_in(Regime.QUEUE)
    if time_ms is None:
        return
    if bound := find_beaten(record, limits):
        yield _describe(f"{time_ms:.3g} ms", time_ms, bound, limits)
    elif queued_ms is not None and (bound := find_beaten(record, limits, Regime.QUEUE)):
        what = f"{queued_ms:.3g} ms a call, back to back,"
        yield _describe(what, queued_ms, bound, limits)
    floor = limits.timer_floor_ms
    if floor is not None and time_ms * limits.margin < floor:
        yield f"{time_ms:.3g} ms is below the {floor:.3g} ms that the timer reads for an empty call"


def _describe(what: str, time_ms: float, bound: Bound, limits: DeviceLimits) -> str:
    return (
        f"{what} is {bound.ms / time_ms:.2f} times faster than possible: "
        f"{bound.why} take {bound.ms:.3g} ms ({limits.source})"
    )


def check_cliff(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """If a time grows far more than its work, another program was probably run.

    Libraries may silently fall back to uncompiled code, or to another backend. The time of one
    kernel grows at most about as the square of its work.
    """
    possible = [
        r
        for r in records
        if r.role is not Role.CONTROL and r.median_ms and not any(find_impossible(r, limits))
    ]
    cases = by_case(possible)
    return [finding for series in length_series(possible) for finding in _find_tops(series, cases)]


def _find_tops(series: list[Record], cases: dict[str, list[Record]]) -> Iterator[Finding]:
    """Report records from the first after a leap (the edge) until one is faster than the edge."""
    foot, edge = series[0], None
    for record in series[1:]:
        if _ms(record) > LEAP * _growth(foot, record) ** 2 * _ms(foot):
            edge = edge or record
        elif edge is None or _ms(record) < _ms(edge):
            foot, edge = record, None
        if edge is None:
            continue
        cliff = _describe_cliff(foot, edge)
        # If the baseline may be the best, the whole case is in doubt.
        best = best_baseline(cases[foot.case_id])
        if record.role is Role.BASELINE and best and _ms(foot) <= IN_THE_RUNNING * _ms(best):
            sentence = f"{cliff}; otherwise it might be the best baseline here"
            yield Finding("cliff", Effect.INCONCLUSIVE, sentence, record.case_id)
        else:
            yield Finding("cliff", Effect.NOTE, cliff, *record.key)


def _growth(foot: Record, record: Record) -> float:
    return max(
        record.length / foot.length,
        record.bytes_min / foot.bytes_min,
        record.flops / max(foot.flops, 1),
    )


def _describe_cliff(foot: Record, edge: Record) -> str:
    return (
        f"{edge.implementation} takes {_ms(foot):.3g} ms at {length_text(foot)} but "
        f"{_ms(edge):.3g} ms at {length_text(edge)}: {_ms(edge) / _ms(foot):.0f} times as long for "
        f"{_growth(foot, edge):.1f} times the work looks like another program (uncompiled, or "
        f"another backend)"
    )


def _ms(record: Record) -> float:
    assert record.median_ms is not None
    return record.median_ms


def check_scaling(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """A time must grow with its compulsory work once the work exceeds the launch cost.

    If its work accounts for half of a time or more, that time must be at least 1.1 times what a
    quarter of the work takes.
    """
    flats = (_find_longest_flat(series, limits) for series in length_series(records))
    return [finding for finding in flats if finding is not None]


def _find_longest_flat(series: list[Record], limits: DeviceLimits) -> Finding | None:
    for top in reversed(series):
        for bottom in series:
            if top.bytes_min / bottom.bytes_min < GROWTH_OF_WORK:
                break
            if _ms(top) < FLAT * _ms(bottom):
                finding = _weigh_flat(bottom, top, limits)
                if finding is not None:
                    return finding
    return None


def _weigh_flat(bottom: Record, top: Record, limits: DeviceLimits) -> Finding | None:
    cold, effect = least_time(top, limits, l2_bytes=0), Effect.NOTE
    why = "without known ceilings it cannot be told from launch cost"
    if cold is not None:
        if cold.ms < LAUNCH_FLOOR_MS or cold.ms < FILLED * _ms(top):
            return None
        effect = Effect.IMPLAUSIBLE if find_beaten(top, limits) else Effect.INCONCLUSIVE
        why = f"from memory {cold.why} take {cold.ms:.3g} ms"
        if effect is Effect.INCONCLUSIVE and limits.l2_bytes:
            why += "; only a warm L2 could explain it"
    sentence = (
        f"time is flat while work grows: {_ms(bottom):.3g} ms at {length_text(bottom)} and "
        f"{_ms(top):.3g} ms at {length_text(top)} ({labels.case(top)}), for "
        f"{top.bytes_min / bottom.bytes_min:.1f} times the bytes; {why}"
    )
    return Finding("scaling", effect, sentence, *top.key)


def check_baseline(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """A speed-up over a slow baseline says nothing about the candidate.

    A slow baseline matters only if no baseline of the case is fast.
    """
    cases = by_case(r for r in records if r.median_ms is not None)
    return [f for case in cases.values() for f in _check_case(case, limits)]


def _check_case(case: list[Record], limits: DeviceLimits) -> Iterator[Finding]:
    yield from _find_slow(case)
    best = best_baseline(case)
    if best is None or not best.median_ms:
        return
    if best.dtype not in limits.tflop_s:
        return  # without a rate, a time far from the memory bound may be arithmetic
    bound = least_time(best, limits, l2_bytes=0)
    if bound is not None and best.median_ms > FAR_FROM_ROOFLINE * bound.ms + FIXED_COST_MS:
        sentence = (
            f"the best valid baseline, {best.implementation}, takes {best.median_ms:.3g} ms, "
            f"{best.median_ms / bound.ms:.0f} times what {bound.why} take: a speed-up over it may "
            f"only mean that this baseline is slow"
        )
        # A baseline that waits for the device in a call, such as by `.item()`, is written badly.
        # Otherwise it may still be the best for this op.
        effect = Effect.INCONCLUSIVE if _synchronises(best) else Effect.NOTE
        yield Finding("baseline", effect, sentence, best.case_id)


def _synchronises(record: Record) -> bool:
    """Return whether over half of the calls seem to wait for the device; True if unobserved."""
    if record.observation is None:
        return True
    hidden = record.observation.samples.gap_hidden
    return bool(hidden) and sum(hidden) / len(hidden) < HIDDEN


def _find_slow(case: list[Record]) -> Iterator[Finding]:
    best = best_baseline(case, alongside=True)
    if best is None or not best.median_ms:
        return
    for record in case:
        if record.role is Role.CANDIDATE or record is best:
            continue
        assert record.median_ms is not None
        factor = record.median_ms / best.median_ms
        if factor > SLOW:
            sentence = (
                f"{record.median_ms:.3g} ms is {factor:.1f} times the {best.median_ms:.3g} ms of "
                f"{best.implementation}, the best valid baseline: no speed-up may be quoted "
                f"against it"
            )
            yield Finding("baseline", Effect.NOTE, sentence, *record.key)
