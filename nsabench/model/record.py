"""What a run knows at its end: records, and the samples that they are of. Columns are only added.

A field of these classes that has a `Column` is a column of the table of its name, with its unit and
meaning; `verdicts.tables` makes the schemas of them.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from nsabench.model.case import Tolerances
from nsabench.model.measurement import Conditions, Observation
from nsabench.model.plan import Device
from nsabench.model.source import Source
from nsabench.model.vocabulary import (
    L2,
    NO_SPECIALISED,
    Catch,
    Direction,
    DType,
    Kind,
    Mode,
    Reference,
    Regime,
    Role,
    Status,
    Verdict,
)

SCHEMA_VERSION = 1
Key = tuple[str, str]  # case id, implementation
Float = float | None
Int = int | None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One implementation on one case in one regime: its times, and what they are held against."""

    run_id: Annotated[str, Column("", "the run")]
    case_id: Annotated[str, Column("", "the case")]
    implementation: Annotated[str, Column("", "the implementation")]
    regime: Annotated[Regime, Column("", "how both are called: device, queue or graph")]
    reference: Annotated[Reference, Column("", "what it is held against")]
    median_ms: Annotated[Float, Column("ms", "median time of a call")] = None
    net_ms: Annotated[
        Float, Column("ms", "median_ms less what the timer adds; null if that is not known")
    ] = None
    p20_ms: Annotated[Float, Column("ms", "20 % quantile of the time of a call")] = None
    p80_ms: Annotated[Float, Column("ms", "80 % quantile of the time of a call")] = None
    n_samples: Annotated[int, Column("1", "timed calls, or bursts of calls")] = 0
    against: Annotated[str, Column("", "which that is; empty: none was valid beside it")] = ""
    ratio: Annotated[
        Float,
        Column(
            "1",
            "median time of the reference / median time of the implementation; where the baselines "
            "are over 3 % faster apart from the candidates, of the best one there",
        ),
    ] = None
    lo: Annotated[Float, Column("1", "lower end of the 95 % interval of ratio")] = None
    hi: Annotated[Float, Column("1", "upper end of the 95 % interval of ratio")] = None
    verdict: Annotated[
        Verdict | None, Column("", "of a candidate: faster, slower, same, inconclusive, invalid")
    ] = None
    reason: Annotated[
        str, Column("", "why the verdict is not clear, or what it rests on, separated by '; '")
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One implementation on one case. None, or an empty text: there is none."""

    run_id: Annotated[str, Column("", "the run")]
    case_id: Annotated[
        str, Column("", "hash of op, shape, dtype, direction, distribution, streams, mode, l2")
    ]
    op: Annotated[str, Column("", "the contract")]
    implementation: Annotated[str, Column("", "the code that was measured")]
    role: Annotated[Role, Column("", "candidate, baseline or control")]
    direction: Annotated[Direction, Column("", "forward, backward or step")]
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
    reason: Annotated[str, Column("", "why the status is not ok")] = ""
    diagnosis: Annotated[str, Column("", "which known mistake reproduces a wrong output")] = ""
    notes: Annotated[str, Column("", "what else is worth knowing, separated by '; '")] = ""
    mae: Annotated[
        Float, Column("1", "mean absolute error against the float64 oracle; of gradients the worst")
    ] = None
    max_abs_err: Annotated[
        Float, Column("1", "largest absolute error against the oracle, of any gradient")
    ] = None
    rel_l2: Annotated[
        Float, Column("1", "||out - oracle|| / ||oracle||; of gradients the worst")
    ] = None
    worst_row: Annotated[
        Float, Column("1", "the same of the worst row, over the norm of a typical row at least")
    ] = None
    worst_row_at: Annotated[str, Column("", "which row that is, as an index of the result")] = ""
    rows_compared: Annotated[
        Int, Column("1", "rows of the output held to the oracle; null: all of them")
    ] = None
    rows_left_out: Annotated[
        Int,
        Column("1", "rows left out of parity: rounding decides which blocks are selected there"),
    ] = None
    host_us: Annotated[
        Float, Column("µs", "median time that a call holds the CPU, the device held meanwhile")
    ] = None
    host_p20_us: Annotated[Float, Column("µs", "20 % quantile of that time")] = None
    host_p80_us: Annotated[Float, Column("µs", "80 % quantile of that time")] = None
    launches: Annotated[
        Int,
        Column("1", "kernels, copies and fills that a call puts on the device, counted by CUPTI"),
    ] = None
    kernels_us: Annotated[
        Float, Column("µs", "what these take on the device, one after the other, by CUPTI's clock")
    ] = None
    attempt: Annotated[
        int, Column("1", "implementations of a case with the same one were interleaved")
    ] = 0
    bytes_min: Annotated[int, Column("byte", "compulsory memory traffic of a call")] = 0
    flops: Annotated[int, Column("flop", "arithmetic of a call")] = 0
    roofline_fraction: Annotated[
        Float, Column("1", "least possible time on this device / median_ms")
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
        str, Column("", "no specialised baseline: a ratio over 3, over general baselines alone")
    ] = ""
    unproven: Annotated[
        str,
        Column(
            "", "of a candidate: checks that no control showed to work there, separated by ', '"
        ),
    ] = ""
    time_doubt: Annotated[
        str,
        Column("", "why its time decides nothing: timer, throttling, other processes, no growth"),
    ] = ""
    caught_by: Annotated[str, Column("", "of a control: the check meant to catch it")] = ""
    caught: Annotated[
        Catch | None, Column("", "of a control: caught, missed, declined or unproven")
    ] = None
    compile_s: Annotated[
        Float,
        Column("s", "wall time of the first call, compilation included, which others may share"),
    ] = None
    peak_mem_bytes: Annotated[Int, Column("byte", "device memory a call allocates at its peak")] = (
        None
    )
    config: Annotated[str, Column("", "what the implementation says it chose for the case")] = ""
    sm_clock_mhz_min: Annotated[Int, Column("MHz", "lowest SM clock seen during the case")] = None
    sm_clock_mhz_max: Annotated[Int, Column("MHz", "highest SM clock seen during the case")] = None
    clock_event_reasons: Annotated[
        str, Column("", "NVML clock event reasons seen, separated by ', '")
    ] = ""
    gpu_name: Annotated[str, Column("", "the device")] = ""
    sm: Annotated[str, Column("", "its compute capability, as sm_90")] = ""
    torch: Annotated[str | None, Column("", "version")] = None
    triton: Annotated[str | None, Column("", "version")] = None
    cuda: Annotated[str | None, Column("", "version of the CUDA that torch was built with")] = None
    schema_version: Annotated[int, Column("1", "of this table")] = SCHEMA_VERSION
    comparisons: tuple[Comparison, ...] = ()  # each with another regime or reference
    # What no table holds: a record that was read from a file has none of it.
    source: Source = field(default=Source(), compare=False)
    wraps: str = field(default="", compare=False)  # of a control: the baseline without its trick
    # Of a baseline: it is there for a control that wraps it. No candidate is held to it.
    alongside: bool = field(default=False, compare=False)
    tolerances: Tolerances = field(default=Tolerances(), compare=False)
    conditions: Conditions = field(default_factory=Conditions, compare=False)
    observation: Observation | None = field(default=None, compare=False)

    @property
    def key(self) -> Key:
        """Case and implementation, which tell it from the others of its run."""
        return self.case_id, self.implementation

    @property
    def regime(self) -> Regime:
        """The regime of its samples, and so of `median_ms`, `speedup` and `verdict`."""
        return Regime.of_samples(self.mode)

    def compared(
        self, regime: Regime, reference: Reference = Reference.BASELINE
    ) -> Comparison | None:
        """Its comparison with a reference in a regime; None if there is none."""
        for found in self.comparisons:
            if found.regime is regime and found.reference is reference:
                return found
        return None

    def comparison(self, regime: Regime, reference: Reference = Reference.BASELINE) -> Comparison:
        """The same, without a ratio if there is none."""
        return self.compared(regime, reference) or Comparison(
            run_id=self.run_id,
            case_id=self.case_id,
            implementation=self.implementation,
            regime=regime,
            reference=reference,
        )

    def median_in(self, regime: Regime) -> float | None:
        """Median time of a call (ms) in a regime; None if it was not timed there."""
        return self.comparison(regime).median_ms

    def may_be_judged_in(self, regime: Regime) -> bool:
        """Whether times in a regime decide: replays, and calls at once, have no queue."""
        alone = self.regime is Regime.DEVICE and self.streams == 1
        return regime is self.regime or (regime is Regime.QUEUE and alone)

    def timed_in(self, regime: Regime) -> float | None:
        """Median time of a call (ms) in a regime where it decides; else None."""
        return self.median_in(regime) if self.may_be_judged_in(regime) else None

    @property
    def own(self) -> Comparison:
        """Its comparison with baselines in the regime of its samples."""
        return self.comparison(self.regime)

    @property
    def median_ms(self) -> float | None:
        return self.own.median_ms

    @property
    def verdict(self) -> Verdict | None:
        return self.own.verdict

    @property
    def speedup(self) -> float | None:
        return self.own.ratio

    @property
    def speedup_lo(self) -> float | None:
        return self.own.lo

    @property
    def speedup_hi(self) -> float | None:
        return self.own.hi

    @property
    def best_baseline(self) -> str:
        return self.own.against

    @property
    def why(self) -> str:
        """Why its status is not ok, or its verdict not clear."""
        return self.reason or self.own.reason

    @property
    def unproven_verdict(self) -> bool:
        """Whether it has a verdict that says something, and a check behind it is unproven."""
        return bool(self.unproven) and self.verdict not in (None, Verdict.INVALID)

    @classmethod
    def from_row(cls, row: Mapping[str, Any], comparisons: Iterable[Comparison] = ()) -> Record:
        """Make a record of a row of records.parquet. A column that is missing gets its default, and
        every further number is a size, whichever ops are installed. A caution that no version
        writes is left out, because pages show cautions as words of their own.

        Raises `ValueError` if a column without a default is missing, or a word is unknown.
        """
        values = values_of(cls, row)
        if values.get("caution") != NO_SPECIALISED:
            values.pop("caution", None)
        values[SHAPE] = {
            name: value
            for name, value in row.items()
            if name not in vocabulary(cls) and type(value) is int
        }
        return cls(**values, comparisons=tuple(comparisons))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A timed call; in the queue a burst of calls, of which nothing but its time is known."""

    run_id: Annotated[str, Column("", "the run")]
    case_id: Annotated[str, Column("", "the case")]
    implementation: Annotated[str, Column("", "the implementation")]
    regime: Annotated[Regime, Column("", "how the call was made: device, queue or graph")]
    attempt: Annotated[int, Column("1", "samples of an attempt were interleaved")]
    round: Annotated[int, Column("1", "round of the sampling; rounds pair the implementations")]
    calls: Annotated[int, Column("1", "calls that were timed together: more than 1 in the queue")]
    time_ms: Annotated[float, Column("ms", "time of a call")]
    order: Annotated[Int, Column("1", "position within the round; 0 led")]
    at_s: Annotated[
        Float, Column("s", "end of the sample, since the first round began, to a microsecond")
    ]
    escaped_ms: Annotated[Float, Column("ms", "part of time_ms that outlived the end event")]
    gap_hidden: Annotated[
        bool | None, Column("", "the call was queued before the device was let go")
    ]
    host_us: Annotated[
        Float, Column("µs", "time that the call held the CPU; 0 where the device was not held")
    ]
    sm_clock_mhz: Annotated[
        Int, Column("MHz", "SM clock read last before the sample; 0: not readable")
    ]


Table = type[Record] | type[Comparison] | type[Sample]


def columns(table: Table, sizes: Iterable[str] = ()) -> list[Column]:
    """Return the columns of a table in their order, with one for each of `sizes`, by name."""
    found = []
    for name, (kind, column) in _ANNOTATED[table].items():
        if name == SHAPE:
            found += size_columns(sizes)
        else:
            found.append(replace(column, name=name, type=str if issubclass(kind, str) else kind))
    return found


def size_columns(sizes: Iterable[str]) -> list[Column]:
    """Return the columns of a record's shape, by name."""
    _, column = _ANNOTATED[Record][SHAPE]
    return [
        replace(column, name=size, type=int, meaning=column.meaning.format(size))
        for size in sorted(sizes)
    ]


def _annotate(table: Table) -> dict[str, tuple[Any, Column]]:
    """The fields of a table that have a column: the type of their values, and the column."""
    found = {}
    for name, hint in get_type_hints(table, include_extras=True).items():
        if get_origin(hint) is Annotated:
            kind, column = get_args(hint)
            if get_origin(kind) in (Union, types.UnionType):
                kind = next(part for part in get_args(kind) if part is not type(None))
            found[name] = (str if get_origin(kind) is Literal else kind), column
    return found


def values_of(table: type[Record] | type[Comparison], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a row by field, without the shape.

    Raises `ValueError` if a column without a default is missing, or a word is unknown.
    """
    values = {}
    for name, (word, required) in vocabulary(table).items():
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
    return values


def _vocabulary(table: Table) -> dict[str, tuple[type[Enum] | None, bool]]:
    found: dict[str, tuple[type[Enum] | None, bool]] = {}
    for column in fields(table):
        if column.name in _ANNOTATED[table]:
            kind, _ = _ANNOTATED[table][column.name]
            word = kind if isinstance(kind, type) and issubclass(kind, Enum) else None
            required = column.default is MISSING and column.default_factory is MISSING
            found[column.name] = word, required
    return found


def vocabulary(table: Table) -> dict[str, tuple[type[Enum] | None, bool]]:
    """Return the columns of a table by name: the vocabulary of their words, and whether every row
    has them."""
    return _VOCABULARIES[table]


_ANNOTATED = {table: _annotate(table) for table in (Record, Comparison, Sample)}
_VOCABULARIES = {table: _vocabulary(table) for table in _ANNOTATED}
