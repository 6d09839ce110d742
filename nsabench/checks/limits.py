"""The ceilings of a device, measured or from a data sheet, and the bounds on a time from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nsabench.machine.datasheet import Sheet
from nsabench.model.measurement import Ceilings
from nsabench.model.record import Record
from nsabench.model.vocabulary import DType, Regime

# Memory and core clocks are often set a few percent above the data sheet's.
OVERCLOCKING = 1.05


@dataclass(frozen=True)
class Limits:
    """Ceilings of one device. None: unknown, so no bound follows from it.

    l2_bytes: so much of a working set may have been in L2 before a call. It is 0 if the timer
      flushes the L2, and the size of the L2 for timers from elsewhere.
    margin: a time is impossible if it beats a bound by this factor. The measured bandwidth is
      from a copy, and reading is up to a tenth faster (H200: 4.25 TB/s copied of a nominal 4.8).
    """

    source: str = "no ceilings"
    memory_gb_s: float | None = None
    l2_gb_s: float | None = None
    l2_bytes: int = 0
    tflop_s: Mapping[str, float] = field(default_factory=dict)
    timer_floor_ms: float | None = None
    known_duration_error: float | None = None
    margin: float = 1.1

    @classmethod
    def of_sheet(cls, sheet: Sheet) -> Limits:
        """Return the ceilings of a data sheet. A timer from elsewhere may have left the L2 full."""
        return cls(
            source=f"data sheet of the {sheet.name}",
            memory_gb_s=sheet.memory_gb_s,
            l2_bytes=sheet.l2_mib << 20,
            tflop_s={"float16": sheet.float16, "bfloat16": sheet.bfloat16},
            margin=OVERCLOCKING,
        )

    @classmethod
    def measured(cls, ceilings: Ceilings) -> Limits:
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


def bounds(
    row: Record, limits: Limits, *, l2_bytes: int | None = None, warm: bool = False
) -> list[Bound]:
    """Return every lower bound on the time of a call, if `limits.l2_bytes` come from L2.

    l2_bytes: instead of `limits.l2_bytes`. warm: all inputs may come from L2.
    """
    in_l2 = limits.l2_bytes if l2_bytes is None else l2_bytes
    resident = row.bytes_min if warm else min(in_l2, row.bytes_min)
    bounds = []
    if limits.memory_gb_s is not None:
        beyond = row.bytes_min - resident
        hits = f" that a full L2 of {resident / 1e6:.0f} MB leaves" if resident else ""
        why = f"the {beyond / 1e6:.1f} MB{hits} at {limits.memory_gb_s:.0f} GB/s"
        bounds.append(Bound(beyond / limits.memory_gb_s / 1e6, why))
    if resident and limits.l2_gb_s is not None:
        why = f"{row.bytes_min / 1e6:.1f} MB through an L2 of {limits.l2_gb_s:.0f} GB/s"
        bounds.append(Bound(row.bytes_min / limits.l2_gb_s / 1e6, why))
    rate = limits.tflop_s.get(row.dtype)
    if rate is not None:
        why = f"{row.flops / 1e9:.2f} GFLOP at {rate:.0f} TFLOP/s"
        bounds.append(Bound(row.flops / rate / 1e9, why))
    return bounds


def least(
    row: Record, limits: Limits, *, l2_bytes: int | None = None, warm: bool = False
) -> Bound | None:
    found = bounds(row, limits, l2_bytes=l2_bytes, warm=warm)
    return max(found, key=lambda b: b.ms, default=None)


def beaten(row: Record, limits: Limits) -> Bound | None:
    """Return the lower bound that a record's time beats by more than the margin, or None."""
    return _find_beaten(row, row.median_ms, limits)


def beaten_in_a_burst(row: Record, limits: Limits) -> Bound | None:
    """Return the lower bound that the time of a queued call beats, or None. Nothing is flushed
    between the calls of a burst, so all inputs may come from L2."""
    return _find_beaten(row, row.median_in(Regime.QUEUE), limits, warm=True)


def _find_beaten(
    row: Record, time_ms: float | None, limits: Limits, *, warm: bool = False
) -> Bound | None:
    allowed = _allow_tensor_cores(limits) if row.dtype is DType.FLOAT32 else limits
    bound = least(row, allowed, warm=warm)
    if bound is None or time_ms is None or time_ms * limits.margin >= bound.ms:
        return None
    return bound


def _allow_tensor_cores(limits: Limits) -> Limits:
    """Return the limits with the float32 rate of tensor cores, which the run does not measure.

    Three TF32 products make one in float32, at half the rate of the 16-bit formats.
    """
    sixteen = [rate for dtype, rate in limits.tflop_s.items() if dtype != DType.FLOAT32]
    full_precision = limits.tflop_s.get(DType.FLOAT32)
    if full_precision is None or not sixteen:
        return limits
    rates = {**limits.tflop_s, DType.FLOAT32: max(full_precision, max(sixteen) / 2 / 3)}
    return replace(limits, tflop_s=rates)
