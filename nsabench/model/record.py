"""What a run knows at its end: records, and the samples that they are of. Columns are only added.

A field of these classes is a column of records.parquet or samples.parquet, with its unit and its
meaning; `assessment.tables` makes the schemas of them.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from nsabench.model.plan import Device
from nsabench.model.vocabulary import (
    L2,
    NO_SPECIALISED,
    Catch,
    Direction,
    DType,
    Kind,
    Mode,
    Regime,
    Role,
    Status,
    Verdict,
)

SCHEMA_VERSION = 1
SHAPE = "shape"  # the field that spans a column for each size of each op


@dataclass(frozen=True)
class Column:
    """A column of a table. unit: "" of a text or a flag, "1" of a plain number.

    name: that of the field; type: of what the file holds, which is `str`, `int`, `float` or `bool`.
    """

    unit: str
    meaning: str
    name: str = ""
    type: type = str


@dataclass(frozen=True, slots=True)
class Beside:
    """An alternative, and its time over that of an implementation, with the 95 % interval."""

    alternative: str
    ratio: float
    lo: float
    hi: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One implementation on one case. None, or an empty text: there is none."""

    run_id: Annotated[str, Column("", "the run")]
    case_id: Annotated[
        str, Column("", "hash of op, shape, dtype, direction, distribution, streams, mode")
    ]
    op: Annotated[str, Column("", "the contract")]
    implementation: Annotated[str, Column("", "the code that was measured")]
    role: Annotated[Role, Column("", "candidate, baseline or control")]
    direction: Annotated[Direction, Column("", "forward or backward")]
    dtype: Annotated[DType, Column("", "element type of the inputs and the output")]
    device: Annotated[Device, Column("", "cuda or cpu")]
    shape: Annotated[Mapping[str, int], Column("1", "size {} of the op's shape")] = field(
        default_factory=dict
    )
    length: Annotated[
        int, Column("1", "what a threshold is of: L selected keys a row, or T or S tokens")
    ]
    distribution: Annotated[str, Column("", "how the selection was drawn")]
    streams: Annotated[int, Column("1", "calls that ran at once, one a stream")]
    mode: Annotated[
        Mode, Column("", "what is timed: calls on a stream, or replays of a CUDA graph")
    ] = Mode.STREAM
    l2: Annotated[
        L2, Column("", "what the L2 held before a timed call: cold, or warm with its inputs")
    ] = L2.COLD
    status: Annotated[Status, Column("", "outcome; everything but ok has a reason")]
    reason: Annotated[str, Column("", "why the status is not ok, or the verdict not clear")] = ""
    diagnosis: Annotated[str, Column("", "which known mistake reproduces a wrong output")] = ""
    notes: Annotated[str, Column("", "what else is worth knowing, separated by '; '")] = ""
    mae: Annotated[
        float | None,
        Column("1", "mean absolute error against the float64 oracle; of gradients the worst"),
    ] = None
    max_abs_err: Annotated[
        float | None, Column("1", "largest absolute error against the oracle, of any gradient")
    ] = None
    rel_l2: Annotated[
        float | None, Column("1", "||out - oracle|| / ||oracle||; of gradients the worst")
    ] = None
    worst_row: Annotated[
        float | None,
        Column("1", "the same of the worst row, over the norm of a typical row at least"),
    ] = None
    worst_row_at: Annotated[str, Column("", "which row that is, as an index of the result")] = ""
    rows_compared: Annotated[
        int | None, Column("1", "rows of the output held to the oracle; null: all of them")
    ] = None
    rows_left_out: Annotated[
        int | None,
        Column("1", "rows left out of parity: rounding decides which blocks are selected there"),
    ] = None
    median_ms: Annotated[float | None, Column("ms", "median time of a call")] = None
    device_ms: Annotated[
        float | None,
        Column("ms", "median_ms less what the timer adds; null in graphs, on a CPU"),
    ] = None
    p20_ms: Annotated[float | None, Column("ms", "20 % quantile of the time of a call")] = None
    p80_ms: Annotated[float | None, Column("ms", "80 % quantile of the time of a call")] = None
    host_us: Annotated[
        float | None,
        Column("µs", "median time that a call holds the CPU, the device held meanwhile"),
    ] = None
    host_p20_us: Annotated[float | None, Column("µs", "20 % quantile of that time")] = None
    host_p80_us: Annotated[float | None, Column("µs", "80 % quantile of that time")] = None
    queued_ms: Annotated[
        float | None,
        Column("ms", "median time of a call among others, one behind the other, nothing awaited"),
    ] = None
    queued_p20_ms: Annotated[float | None, Column("ms", "20 % quantile of that time")] = None
    queued_p80_ms: Annotated[float | None, Column("ms", "80 % quantile of that time")] = None
    launches: Annotated[
        int | None,
        Column("1", "kernels, copies and fills that a call puts on the device, counted by CUPTI"),
    ] = None
    kernels_us: Annotated[
        float | None,
        Column("µs", "what these take on the device, one after the other, by CUPTI's clock"),
    ] = None
    n_samples: Annotated[int, Column("1", "timed calls")] = 0
    session: Annotated[
        int, Column("1", "implementations of a case with the same one were interleaved")
    ] = 0
    bytes_min: Annotated[int, Column("byte", "compulsory memory traffic of a call")] = 0
    flops: Annotated[int, Column("flop", "arithmetic of a call")] = 0
    roofline_fraction: Annotated[
        float | None, Column("1", "least possible time on this device / median_ms")
    ] = None
    best_baseline: Annotated[
        str, Column("", "the fastest valid baseline measured beside the candidate")
    ] = ""
    speedup: Annotated[
        float | None,
        Column(
            "1",
            "median of the best baseline / median of the candidate; where the baselines are over "
            "3 % faster apart from the candidates, of the best one there",
        ),
    ] = None
    speedup_lo: Annotated[
        float | None, Column("1", "lower end of the 95 % interval of speedup")
    ] = None
    speedup_hi: Annotated[
        float | None, Column("1", "upper end of the 95 % interval of speedup")
    ] = None
    verdict: Annotated[
        Verdict | None, Column("", "faster, slower, same, inconclusive or invalid")
    ] = None
    queue_best_baseline: Annotated[
        str, Column("", "the valid baseline beside the candidate with the least queued_ms")
    ] = ""
    queue_speedup: Annotated[
        float | None,
        Column("1", "its queued_ms over that of the candidate; otherwise as speedup"),
    ] = None
    queue_speedup_lo: Annotated[
        float | None, Column("1", "lower end of the 95 % interval of queue_speedup")
    ] = None
    queue_speedup_hi: Annotated[
        float | None, Column("1", "upper end of the 95 % interval of queue_speedup")
    ] = None
    queue_verdict: Annotated[
        Verdict | None,
        Column(
            "",
            "the verdict in the regime queue, which graphs and calls at once do not have; that of "
            "verdict is device, or graph where that is the mode",
        ),
    ] = None
    queue_reason: Annotated[str, Column("", "why queue_verdict is not clear")] = ""
    best_alternative: Annotated[
        str, Column("", "the fastest valid alternative that was measured beside it")
    ] = ""
    against_alternative: Annotated[
        float | None,
        Column("1", "median of the best alternative / median of the implementation, on the device"),
    ] = None
    against_alternative_lo: Annotated[
        float | None, Column("1", "lower end of the 95 % interval of against_alternative")
    ] = None
    against_alternative_hi: Annotated[
        float | None, Column("1", "upper end of the 95 % interval of against_alternative")
    ] = None
    queue_best_alternative: Annotated[
        str, Column("", "the valid alternative beside it with the least queued_ms")
    ] = ""
    queue_against_alternative: Annotated[
        float | None,
        Column(
            "1", "its queued_ms over that of the implementation; otherwise as against_alternative"
        ),
    ] = None
    queue_against_alternative_lo: Annotated[
        float | None, Column("1", "lower end of the 95 % interval of queue_against_alternative")
    ] = None
    queue_against_alternative_hi: Annotated[
        float | None, Column("1", "upper end of the 95 % interval of queue_against_alternative")
    ] = None
    computes: Annotated[
        str, Column("", "of an alternative: the op that it computes, and is held to")
    ] = ""
    kind: Annotated[
        Kind | None,
        Column("", "of a baseline: specialised, or general (a mask, a gather, FlexAttention)"),
    ] = None
    package: Annotated[str, Column("", "the library that the implementation calls")] = ""
    package_version: Annotated[str, Column("", "its version, or the commit of a repository")] = ""
    licence: Annotated[str, Column("", "its licence, an SPDX expression")] = ""
    caution: Annotated[
        str,
        Column(
            "",
            "beside a verdict: no specialised baseline, where a ratio is over 3 and all that it "
            "is over is general",
        ),
    ] = ""
    unproven: Annotated[
        str,
        Column(
            "",
            "of a candidate: checks that no control showed to work for its op, direction and mode, "
            "separated by ', '",
        ),
    ] = ""
    time_doubt: Annotated[
        str,
        Column(
            "",
            "why its time decides nothing: a timer that is off, throttling, other processes, no "
            "growth with the work",
        ),
    ] = ""
    caught_by: Annotated[str, Column("", "of a control: the check meant to catch it")] = ""
    caught: Annotated[
        Catch | None, Column("", "of a control: caught, missed, declined or unproven")
    ] = None
    compile_s: Annotated[
        float | None,
        Column("s", "wall time of the first call, compilation included, which others may share"),
    ] = None
    peak_mem_bytes: Annotated[
        int | None, Column("byte", "device memory a call allocates at its peak")
    ] = None
    config: Annotated[str, Column("", "what the implementation says it chose for the case")] = ""
    sm_clock_mhz_min: Annotated[
        int | None, Column("MHz", "lowest SM clock seen during the case")
    ] = None
    sm_clock_mhz_max: Annotated[
        int | None, Column("MHz", "highest SM clock seen during the case")
    ] = None
    clock_event_reasons: Annotated[
        str, Column("", "NVML clock event reasons seen, separated by ', '")
    ] = ""
    gpu_name: Annotated[str, Column("", "the device")] = ""
    sm: Annotated[str, Column("", "its compute capability, as sm_90")] = ""
    torch: Annotated[str | None, Column("", "version")] = None
    triton: Annotated[str | None, Column("", "version")] = None
    cuda: Annotated[str | None, Column("", "version of the CUDA that torch was built with")] = None
    schema_version: Annotated[int, Column("1", "of this table")] = SCHEMA_VERSION

    @property
    def key(self) -> tuple[str, str]:
        """Case and implementation, which tell it from the others of its run."""
        return self.case_id, self.implementation

    @property
    def regime(self) -> Regime:
        """That of its samples, and so of `speedup` and `verdict`."""
        return Regime.of_samples(self.mode)

    def timed_in(self, regime: Regime) -> float | None:
        """Median time of a call (ms) in a regime; None where it was not timed there."""
        if regime is self.regime:
            return self.median_ms
        in_queue = regime is Regime.QUEUE and self.regime is Regime.DEVICE and self.streams == 1
        return self.queued_ms if in_queue else None

    def against_in(self, regime: Regime) -> Beside | None:
        """The ratio to the best alternative in a regime; None where there is none."""
        if regime is self.regime and self.against_alternative is not None:
            lo, hi = self.against_alternative_lo, self.against_alternative_hi
            return Beside(self.best_alternative, self.against_alternative, lo or 0.0, hi or 0.0)
        if regime is Regime.QUEUE and self.queue_against_alternative is not None:
            lo, hi = self.queue_against_alternative_lo, self.queue_against_alternative_hi
            name = self.queue_best_alternative
            return Beside(name, self.queue_against_alternative, lo or 0.0, hi or 0.0)
        return None

    def judged_in(self, regime: Regime) -> tuple[Verdict, float | None] | None:
        """Verdict and speed-up of a candidate in a regime; None where it has no verdict there."""
        if regime is self.regime:
            return None if self.verdict is None else (self.verdict, self.speedup)
        if regime is Regime.QUEUE and self.queue_verdict is not None:
            return self.queue_verdict, self.queue_speedup
        return None

    @property
    def unproven_verdict(self) -> bool:
        """Whether it has a verdict that says something, and a check behind it is unproven."""
        return bool(self.unproven) and self.verdict not in (None, Verdict.INVALID)

    def row(self) -> dict[str, Any]:
        """As records.parquet holds it: by column, with a column a size."""
        cells: dict[str, Any] = {}
        for name in vocabulary():
            if name == SHAPE:
                cells.update(self.shape)
                continue
            value = getattr(self, name)
            cells[name] = value.value if isinstance(value, Enum) else value
        return cells

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Record:
        """Make a record of a row of records.parquet. A column that is missing gets its default, and
        every further number is a size, whichever ops are installed. A caution that no version
        writes is left out, because pages show cautions as words of their own.

        Raises `ValueError` if a column without a default is missing, or a word is unknown.
        """
        fixed, values = vocabulary(), {}
        for name, (word, required) in fixed.items():
            value = row.get(name) if name != SHAPE else None
            if value is None:
                if required:
                    raise ValueError(f"has no {name}")
            elif word is None:
                values[name] = value
            else:
                try:
                    values[name] = word(value)
                except ValueError:
                    raise ValueError(f"has the {name} {value!r}, which is none") from None
        if values.get("caution") != NO_SPECIALISED:
            values.pop("caution", None)
        values[SHAPE] = {
            name: value for name, value in row.items() if name not in fixed and type(value) is int
        }
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A timed call; in the queue a burst of calls, of which nothing but its time is known."""

    run_id: Annotated[str, Column("", "the run")]
    case_id: Annotated[str, Column("", "the case")]
    implementation: Annotated[str, Column("", "the implementation")]
    regime: Annotated[Regime, Column("", "how the call was made: device, queue or graph")]
    session: Annotated[int, Column("1", "samples of a session were interleaved")]
    round: Annotated[int, Column("1", "round of the sampling; rounds pair the implementations")]
    calls: Annotated[int, Column("1", "calls that were timed together: more than 1 in the queue")]
    time_ms: Annotated[float, Column("ms", "time of a call")]
    order: Annotated[int | None, Column("1", "position within the round; 0 led")]
    at_s: Annotated[
        float | None,
        Column("s", "end of the sample, since the first round began, to a microsecond"),
    ]
    escaped_ms: Annotated[float | None, Column("ms", "part of time_ms that outlived the end event")]
    gap_hidden: Annotated[
        bool | None, Column("", "the call was queued before the device was let go")
    ]
    host_us: Annotated[
        float | None,
        Column("µs", "time that the call held the CPU; 0 where the device was not held"),
    ]
    sm_clock_mhz: Annotated[
        int | None, Column("MHz", "SM clock read last before the sample; 0: not readable")
    ]


Table = type[Record] | type[Sample]


def columns(table: Table, sizes: Iterable[str] = ()) -> list[Column]:
    """The columns of a table in their order, with one for each of `sizes`, by name."""
    return list(_columns(table, sizes))


def size_columns(sizes: Iterable[str]) -> list[Column]:
    """The columns of a record's shape, by name."""
    column = _size_column()
    return [
        replace(column, name=size, type=int, meaning=column.meaning.format(size))
        for size in sorted(sizes)
    ]


@cache
def _size_column() -> Column:
    _, column = get_args(get_type_hints(Record, include_extras=True)[SHAPE])
    assert isinstance(column, Column)
    return column


def _columns(table: Table, sizes: Iterable[str]) -> Iterator[Column]:
    for name, hint in get_type_hints(table, include_extras=True).items():
        kind, column = get_args(hint)
        if name == SHAPE:
            yield from size_columns(sizes)
        else:
            yield replace(column, name=name, type=_stored(kind))


def _value_type(kind: Any) -> Any:
    """`float` of `float | None`."""
    if get_origin(kind) in (Union, types.UnionType):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def _stored(kind: Any) -> type:
    kind = _value_type(kind)
    if get_origin(kind) is Literal or issubclass(kind, str):
        return str
    assert kind in (int, float, bool), kind
    return kind  # type: ignore[no-any-return]


@cache
def vocabulary() -> dict[str, tuple[type[Enum] | None, bool]]:
    """The fields of a record by name: the vocabulary that its words are of, and whether every
    record has it."""
    hints = get_type_hints(Record)
    fixed: dict[str, tuple[type[Enum] | None, bool]] = {}
    for column in fields(Record):
        kind = _value_type(hints[column.name])
        word = kind if isinstance(kind, type) and issubclass(kind, Enum) else None
        required = column.default is MISSING and column.default_factory is MISSING
        fixed[column.name] = word, required
    return fixed
