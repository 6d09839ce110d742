"""What a device can do at most: measured in the run, or from a data sheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from nsabench.machine.datasheet import Sheet
from nsabench.model.measurement import Ceilings
from nsabench.model.record import Record
from nsabench.model.vocabulary import L2, DType, Regime

# Memory and core clocks are often set a few percent above the data sheet's.
OVERCLOCKING = 1.05


@dataclass(frozen=True)
class Limits:
    """Ceilings of one device. None: unknown, and then nothing is held against it.

    l2_bytes: how much of a working set may have been in L2 before the call: 0 where the timer
      flushes it, the size of the L2 where the timer is not ours.
    margin: how far beyond a ceiling a time must be before it counts as impossible. A measured
      ceiling is that of a copy, and reading alone is up to a tenth faster (H200: 4.25 TB/s
      copied of a nominal 4.8).
    """

    source: str = "no ceilings"
    memory_gb_s: float | None = None
    l2_gb_s: float | None = None
    l2_bytes: int = 0
    tflop_s: Mapping[str, float] = field(default_factory=dict)
    timer_floor_ms: float | None = None
    known_duration_error: float | None = None
    margin: float = 1.1
    sheet: Limits | None = None  # of a measured device: what its data sheet says

    @classmethod
    def of_sheet(cls, sheet: Sheet) -> Limits:
        """The ceilings of a data sheet, allowing a whole L2 of hits: it is not known what a foreign
        timer flushed."""
        return cls(
            source=f"data sheet of the {sheet.name}",
            memory_gb_s=sheet.memory_gb_s,
            l2_bytes=sheet.l2_mib << 20,
            tflop_s={"float16": sheet.float16, "bfloat16": sheet.bfloat16},
            margin=OVERCLOCKING,
        )

    @classmethod
    def measured(cls, ceilings: Ceilings, sheet: Limits | None = None) -> Limits:
        """The ceilings that a run measured, with caches flushed before every sample."""
        return cls(
            source="measured in this run",
            memory_gb_s=ceilings.copy_gb_s,
            l2_gb_s=ceilings.l2_gb_s,
            tflop_s=ceilings.tflop_s,
            timer_floor_ms=ceilings.timer_floor_ms,
            known_duration_error=ceilings.known_duration_error,
            sheet=sheet,
        )


@dataclass(frozen=True)
class Bound:
    """The least time that some work can take, and what sets it."""

    ms: float
    why: str


def bounds(row: Record, limits: Limits, *, l2_bytes: int | None = None) -> list[Bound]:
    """Every lower bound on the time of this case's compulsory work, allowing `limits.l2_bytes`
    (or the `l2_bytes` given instead) to come from L2."""
    held = limits.l2_bytes if l2_bytes is None else l2_bytes
    # How much of it fits is not known here: what is warm may all come from there.
    resident = row.bytes_min if row.l2 is L2.WARM else min(held, row.bytes_min)
    rate = limits.tflop_s.get(row.dtype)
    return list(
        _bounds(row.bytes_min, row.flops, resident, limits.memory_gb_s, limits.l2_gb_s, rate)
    )


@lru_cache(maxsize=64)  # the same for nearly all rows of a case, and asked of each several times
def _bounds(
    bytes_min: int,
    flops: int,
    resident: int,
    memory_gb_s: float | None,
    l2_gb_s: float | None,
    tflop_s: float | None,
) -> tuple[Bound, ...]:
    bounds = []
    if memory_gb_s is not None:
        beyond = bytes_min - resident
        hits = f" that a full L2 of {resident / 1e6:.0f} MB leaves" if resident else ""
        why = f"the {beyond / 1e6:.1f} MB{hits} at {memory_gb_s:.0f} GB/s"
        bounds.append(Bound(beyond / memory_gb_s / 1e6, why))
    if resident and l2_gb_s is not None:
        why = f"{bytes_min / 1e6:.1f} MB through an L2 of {l2_gb_s:.0f} GB/s"
        bounds.append(Bound(bytes_min / l2_gb_s / 1e6, why))
    if tflop_s is not None:
        why = f"{flops / 1e9:.2f} GFLOP at {tflop_s:.0f} TFLOP/s"
        bounds.append(Bound(flops / tflop_s / 1e9, why))
    return tuple(bounds)


def least(row: Record, limits: Limits, *, l2_bytes: int | None = None) -> Bound | None:
    """The greatest of the lower bounds, or None where no ceiling is known."""
    return max(bounds(row, limits, l2_bytes=l2_bytes), key=lambda b: b.ms, default=None)


def beaten(row: Record, limits: Limits) -> Bound | None:
    """The lower bound that the record's time is below, by more than the margin; else None."""
    return _beaten(row, row.median_ms, limits)


def beaten_in_a_burst(row: Record, limits: Limits) -> Bound | None:
    """The lower bound that a queued call is below. Nothing was flushed before the call, so all that
    it reads may come from L2."""
    return _beaten(replace(row, l2=L2.WARM), row.median_in(Regime.QUEUE), limits)


def _beaten(row: Record, time_ms: float | None, limits: Limits) -> Bound | None:
    bound = least(row, _by_any_unit(limits) if row.dtype is DType.FLOAT32 else limits)
    if bound is None or time_ms is None or time_ms * limits.margin >= bound.ms:
        return None
    return bound


def _by_any_unit(limits: Limits) -> Limits:
    """Return the limits with the float32 rate of tensor cores.

    Three TF32 products make one in float32, at half the rate of the 16-bit formats. The matrix
    product of torch, which the run measures, does not use them.
    """
    sixteen = [rate for dtype, rate in limits.tflop_s.items() if dtype != DType.FLOAT32]
    full_precision = limits.tflop_s.get(DType.FLOAT32)
    if full_precision is None or not sixteen:
        return limits
    rates = {**limits.tflop_s, DType.FLOAT32: max(full_precision, max(sixteen) / 2 / 3)}
    return replace(limits, tflop_s=rates)
