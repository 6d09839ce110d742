"""What a check sees of a record. Times in ms, sizes in bytes, clocks in MHz."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nsabench import labels, ops
from nsabench.model.measurement import Conditions
from nsabench.model.record import Record
from nsabench.model.vocabulary import L2, Direction, DType, Kind, Mode, Regime, Role, Status


@dataclass(frozen=True)
class Row:
    """One implementation on one case. None: not measured, or not known."""

    case_id: str
    op: str
    implementation: str
    role: Role
    status: Status
    dtype: DType
    shape: Mapping[str, int]
    length: int
    bytes_min: int
    flops: int
    direction: Direction = Direction.FORWARD
    distribution: str = ""
    streams: int = 1
    mode: Mode = Mode.STREAM
    l2: L2 = L2.COLD
    caught_by: str = ""  # of a control: the check that is meant to catch it
    wraps: str = ""  # of a control: the baseline that it is without its trick
    source: str = ""  # the package or file that it comes from
    computes: str = ""  # of an alternative: the op that it is one of
    kind: Kind | None = None  # of a baseline: what it was made for
    alongside: bool = False  # of a baseline: it is there for a control that wraps it, and no more
    reason: str = ""
    attempt: int = 0
    mae: float | None = None
    rel_l2: float | None = None
    worst_row: float | None = None  # the largest relative error of a single row
    worst_row_at: str = ""
    errors_against: str = "the float64 oracle"
    mae_tolerance: float = 1e-3
    rel_l2_ratio: float = 2.0
    median_ms: float | None = None
    host_us: float | None = None  # median; None where the device was not held meanwhile
    queued_ms: float | None = None  # median of calls one behind the other
    launches: int | None = None  # of a call
    kernels_us: float | None = None  # how long these take, one after the other
    n_samples: int = 0  # that median_ms is of
    median_mcycles: float | None = None  # median of sample time x SM clock, in 1e6 cycles
    escaped_share: float = 0.0  # share of samples with work that outlived the end event
    gap_hidden_share: float = 1.0  # share of samples that were queued before the device let go
    conditions: Conditions = field(default_factory=Conditions)

    @classmethod
    def of(cls, record: Record, *, alongside: bool = False) -> Row:
        """As far as checks that look along a length read it of a record."""
        return cls(
            case_id=record.case_id,
            op=record.op,
            implementation=record.implementation,
            role=record.role,
            alongside=alongside,
            status=record.status,
            dtype=record.dtype,
            shape=record.shape,
            length=record.length,
            bytes_min=record.bytes_min,
            flops=record.flops,
            direction=record.direction,
            distribution=record.distribution,
            streams=record.streams,
            mode=record.mode,
            l2=record.l2,
            attempt=record.attempt,
            median_ms=record.median_ms,
            n_samples=record.n_samples,
        )

    @property
    def timed_ms(self) -> float | None:
        """The median of a record that is `ok`, else None: a failure has no time."""
        return self.median_ms if self.status is Status.OK else None

    def time_ms(self, regime: Regime) -> float | None:
        """The median of a record that is `ok` in this regime."""
        if regime is not Regime.QUEUE:
            return self.timed_ms
        return self.queued_ms if self.status is Status.OK else None

    @property
    def length_text(self) -> str:
        """The length as people say it: `L=512`."""
        return f"{ops.get(self.op).length_axis}={self.length}"

    @property
    def label(self) -> str:
        """Sizes, dtype and whatever else tells this case from its neighbours."""
        return labels.case(self)
