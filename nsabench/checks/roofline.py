"""The ceilings of a device, and the least time that some work can take below them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nsabench.checks.finding import Effect, Finding
from nsabench.machine.datasheet import Sheet
from nsabench.model.measurement import Ceilings
from nsabench.model.record import Record
from nsabench.model.vocabulary import DType, Regime

# Memory and core clocks are often set a few percent above the data sheet's.
OVERCLOCKING = 1.05


@dataclass(frozen=True)
class DeviceLimits:
    """Ceilings of one device, measured or from a data sheet. None: unknown, so no bound follows."""

    source: str = "no ceilings"
    memory_gb_s: float | None = None
    l2_gb_s: float | None = None
    l2_bytes: int = 0  # of the inputs that may be in L2 before a call; 0 if the timer flushes it
    tflop_s: Mapping[str, float] = field(default_factory=dict)
    timer_floor_ms: float | None = None
    known_duration_error: float | None = None
    # A time is impossible if it beats a bound by this factor. The bandwidth was measured
    # with a copy, and reading is up to a tenth faster (H200: 4.25 TB/s copied of a nominal 4.8).
    margin: float = 1.1

    @classmethod
    def from_sheet(cls, sheet: Sheet) -> DeviceLimits:
        """Return the ceilings of a data sheet. A timer from elsewhere may have left the L2 full."""
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
    """The least time that some work can take, and the reason."""

    ms: float
    why: str


def least_time(
    record: Record, limits: DeviceLimits, *, l2_bytes: int | None = None, warm: bool = False
) -> Bound | None:
    """Return the greatest lower bound on the time of a call, if `limits.l2_bytes` come from L2.

    l2_bytes: instead of `limits.l2_bytes`. warm: all inputs may come from L2.
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
    # Nothing is flushed between the calls of a burst, so in the queue all inputs may be in L2.
    time_ms = record.median_in(regime or record.regime)
    allowed = _allow_tensor_cores(limits) if record.dtype is DType.FLOAT32 else limits
    bound = least_time(record, allowed, warm=regime is Regime.QUEUE)
    if bound is None or time_ms is None or time_ms * limits.margin >= bound.ms:
        return None
    return bound


def _allow_tensor_cores(limits: DeviceLimits) -> DeviceLimits:
    """Return the limits with the float32 rate of tensor cores, which the run does not measure."""
    sixteen = [rate for dtype, rate in limits.tflop_s.items() if dtype != DType.FLOAT32]
    full_precision = limits.tflop_s.get(DType.FLOAT32)
    if full_precision is None or not sixteen:
        return limits
    # Three TF32 products make one in float32, at half the rate of the 16-bit formats.
    rates = {**limits.tflop_s, DType.FLOAT32: max(full_precision, max(sixteen) / 2 / 3)}
    return replace(limits, tflop_s=rates)


def check_roofline(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """No time is shorter than the compulsory work takes at the device's ceilings.

    Back-to-back calls are also checked, because a burst hides a cheat's wait for the device.
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
        what = f"{queued_ms:.3g} ms a call, one behind the other,"
        yield _describe(what, queued_ms, bound, limits)
    floor = limits.timer_floor_ms
    if floor is not None and time_ms * limits.margin < floor:
        yield f"{time_ms:.3g} ms is below the {floor:.3g} ms that the timer reads for an empty call"


def _describe(what: str, time_ms: float, bound: Bound, limits: DeviceLimits) -> str:
    return (
        f"{what} is {bound.ms / time_ms:.2f} times faster than possible: "
        f"{bound.why} take {bound.ms:.3g} ms ({limits.source})"
    )
