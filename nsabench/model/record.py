"""The rows of a run's tables: records, comparisons and samples. No column is ever removed.

An annotated field is a column of the table, with its meaning and unit; `verdicts/tables.py` makes
the schemas. The `shape` of a record becomes one column for each size.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from nsabench.model.case import Tolerances
from nsabench.model.measurement import Bursts, Conditions, Observation, Samples
from nsabench.model.plan import Device
from nsabench.model.source import Source
from nsabench.model.vocabulary import (
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
from nsabench.reading import OutOfBounds

SCHEMA_VERSION = 1
GREAT_RATIO = 3.0  # a higher ratio to a general baseline gets a caution
Key = tuple[str, str]  # case id, implementation
Float = float | None
Int = int | None
Words = type[Enum]


@dataclass(frozen=True)
class Column:
    """A column of a table. unit: "" for a text or a flag, "1" for a plain number."""

    name: str
    type: type  # in the file: str, int, float or bool
    unit: str
    meaning: str
    word: Words | None = None  # the enum of its values, if it has one
    is_required: bool = False  # whether each row has a value

    def read(self, value: Any) -> Any:
        """Return a value of a file. Raises `OutOfBounds` for a missing value or unknown word."""
        if value is None:
            if self.is_required:
                raise OutOfBounds(f"holds a row that has no {self.name}")
        elif self.word is not None:
            try:
                return self.word(value)
            except ValueError:
                what = f"holds a row that has an unknown {self.name}: {value!r}"
                raise OutOfBounds(what) from None
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One implementation on one case in one regime: its times, and their ratio to a reference."""

    run_id: Annotated[str, "the run"]
    case_id: Annotated[str, "the case"]
    implementation: Annotated[str, "the implementation"]
    regime: Annotated[Regime, "how both are called: device, queue or graph"]
    reference: Annotated[Reference, "what the implementation is compared with"]
    median_ms: Annotated[Float, "median time of a call", "ms"] = None
    net_ms: Annotated[
        Float, "median_ms minus what the timer adds; null if that is not known", "ms"
    ] = None
    p20_ms: Annotated[Float, "20 % quantile of the time of a call", "ms"] = None
    p80_ms: Annotated[Float, "80 % quantile of the time of a call", "ms"] = None
    n_samples: Annotated[int, "timed calls, or bursts of calls", "1"] = 0
    against: Annotated[
        str, "the implementation that is the reference; empty if none was valid in the case"
    ] = ""
    ratio: Annotated[
        Float,
        "median time of the reference / median time of the implementation; if the references are "
        "over 3 % faster without candidates (less if the clock moved), the best time there counts",
        "1",
    ] = None
    isolated_ms: Annotated[
        Float, "median time of the reference without candidates, if this decides ratio", "ms"
    ] = None
    lo: Annotated[Float, "lower end of the 95 % interval of ratio", "1"] = None
    hi: Annotated[Float, "upper end of the 95 % interval of ratio", "1"] = None
    verdict: Annotated[
        Verdict | None, "of a candidate: faster, slower, same, inconclusive, invalid"
    ] = None
    reason: Annotated[
        str, "why there is no clear verdict, or what the verdict rests on, separated by '; '"
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One implementation on one case. None and an empty text stand for a missing value."""

    run_id: Annotated[str, "the run"]
    case_id: Annotated[str, "hash of op, shape, dtype, direction, distribution, mode"]
    op: Annotated[str, "the op: what is computed"]
    implementation: Annotated[str, "the code that was measured"]
    role: Annotated[Role, "candidate, baseline, alternative or control"]
    direction: Annotated[Direction, "forward, backward or step"]
    dtype: Annotated[DType, "element type of the inputs and the output"]
    device: Annotated[Device, "cuda or cpu"]
    shape: Mapping[str, int] = field(default_factory=dict)
    length: Annotated[int, "length for thresholds: L selected keys a row, or T or S tokens", "1"]
    distribution: Annotated[str, "how the selection was drawn"]
    mode: Annotated[Mode, "what is timed: calls on a stream, or replays of a CUDA graph"] = (
        Mode.STREAM
    )
    status: Annotated[Status, "outcome; everything but ok has a reason"]
    reason: Annotated[str, "why the status is not ok"] = ""
    diagnosis: Annotated[str, "which known mistake reproduces a wrong output"] = ""
    notes: Annotated[str, "what else is worth knowing, separated by '; '"] = ""
    mae: Annotated[
        Float, "mean absolute error against the float64 oracle; for gradients the largest", "1"
    ] = None
    max_abs_err: Annotated[
        Float, "largest absolute error against the oracle, of any gradient", "1"
    ] = None
    rel_l2: Annotated[Float, "||out - oracle|| / ||oracle||; for gradients the largest", "1"] = None
    worst_row: Annotated[
        Float, "error of the worst row / its norm or, if larger, a typical row's (dv: 1/64)", "1"
    ] = None
    worst_row_at: Annotated[str, "the worst row, as an index of the result"] = ""
    rows_compared: Annotated[
        Int, "rows of the output compared with the oracle; null: all of them", "1"
    ] = None
    host_us: Annotated[
        Float, "median time that a call holds the CPU while a spin holds the device", "µs"
    ] = None
    host_p20_us: Annotated[Float, "20 % quantile of the time that a call holds the CPU", "µs"] = (
        None
    )
    host_p80_us: Annotated[Float, "80 % quantile of the time that a call holds the CPU", "µs"] = (
        None
    )
    launches: Annotated[
        Int, "kernels, copies and fills that a call puts on the device, counted by CUPTI", "1"
    ] = None
    kernels_us: Annotated[
        Float, "time of these launches on the device, one after the other, by CUPTI's clock", "µs"
    ] = None
    attempt: Annotated[int, "implementations with the same attempt were interleaved", "1"] = 0
    bytes_min: Annotated[int, "compulsory memory traffic of a call", "byte"] = 0
    flops: Annotated[int, "arithmetic of a call", "flop"] = 0
    roofline_fraction: Annotated[Float, "least possible time on this device / median_ms", "1"] = (
        None
    )
    computes: Annotated[str, "of an alternative: the op that it computes, whose oracle counts"] = ""
    kind: Annotated[
        Kind | None, "of a baseline: specialised, or general (a mask, a gather, FlexAttention)"
    ] = None
    package: Annotated[str, "the library that the implementation calls"] = ""
    package_version: Annotated[str, "version of that library, or a commit of its repository"] = ""
    licence: Annotated[str, "licence of that library, an SPDX expression"] = ""
    caution: Annotated[
        str, "`no specialised baseline`, if a ratio is over 3 and only general baselines count"
    ] = ""
    unproven: Annotated[
        str, "of a candidate: checks that no control showed to work, separated by ', '"
    ] = ""
    time_doubt: Annotated[
        str, "why its time decides nothing: timer, throttling, other processes, no growth with work"
    ] = ""
    caught_by: Annotated[str, "of a control: the check that must catch it"] = ""
    caught: Annotated[Catch | None, "of a control: caught, missed, declined or unproven"] = None
    compile_s: Annotated[
        Float, "wall time of the first call and its compilation, which several may share", "s"
    ] = None
    peak_mem_bytes: Annotated[Int, "device memory a call allocates at its peak", "byte"] = None
    config: Annotated[str, "what the implementation says it chose for the case"] = ""
    sm_clock_mhz_min: Annotated[Int, "lowest SM clock seen during the case", "MHz"] = None
    sm_clock_mhz_max: Annotated[Int, "highest SM clock seen during the case", "MHz"] = None
    clock_event_reasons: Annotated[str, "NVML clock event reasons seen, separated by ', '"] = ""
    gpu_name: Annotated[str, "the device"] = ""
    sm: Annotated[str, "compute capability of the device, such as sm_90"] = ""
    torch: Annotated[str | None, "version of torch"] = None
    triton: Annotated[str | None, "version of Triton"] = None
    cuda: Annotated[str | None, "version of the CUDA that torch was built with"] = None
    schema_version: Annotated[int, "of this table", "1"] = SCHEMA_VERSION
    comparisons: tuple[Comparison, ...] = ()  # each with another regime or reference
    # The fields below are in no table: a record that was read from a file has their defaults.
    source: Source = field(default=Source(), compare=False)
    wraps: str = field(default="", compare=False)  # the baseline that a control adds its trick to
    needs_order: bool = field(default=False, compare=False)  # only the order of its work is wrong
    # The baseline runs only for a control that wraps it: candidates are not compared with it.
    alongside: bool = field(default=False, compare=False)
    tolerances: Tolerances = field(default=Tolerances(), compare=False)
    conditions: Conditions = field(default_factory=Conditions, compare=False)
    observation: Observation | None = field(default=None, compare=False)

    @property
    def key(self) -> Key:
        return self.case_id, self.implementation

    @property
    def regime(self) -> Regime:
        """The regime of the samples, and so of `median_ms`, `speedup` and `verdict`."""
        return Regime.from_mode(self.mode)

    def compared(
        self, regime: Regime, reference: Reference = Reference.BASELINE
    ) -> Comparison | None:
        for comparison in self.comparisons:
            if comparison.regime is regime and comparison.reference is reference:
                return comparison
        return None

    def compared_best(self, regime: Regime) -> Comparison | None:
        """Return the comparison with a baseline or, if none was valid, with an alternative."""
        baseline, other = self.compared(regime), self.compared(regime, Reference.ALTERNATIVE)
        is_judged = baseline and (baseline.against or baseline.verdict is Verdict.INVALID)
        return baseline if is_judged or self.time_doubt else other or baseline

    def comparison(self, regime: Regime, reference: Reference = Reference.BASELINE) -> Comparison:
        """Return the comparison in a regime. If it was not made, all its results are missing."""
        return self.compared(regime, reference) or Comparison(
            run_id=self.run_id,
            case_id=self.case_id,
            implementation=self.implementation,
            regime=regime,
            reference=reference,
        )

    def median_in(self, regime: Regime) -> float | None:
        return self.comparison(regime).median_ms

    def may_be_judged_in(self, regime: Regime) -> bool:
        """Return whether verdicts may use times in a regime. In graph mode there are no bursts."""
        return regime is self.regime or (regime is Regime.QUEUE and self.regime is Regime.DEVICE)

    def timed_in(self, regime: Regime) -> float | None:
        """Return the median time of a call (ms), or None if verdicts may not use the regime."""
        return self.median_in(regime) if self.may_be_judged_in(regime) else None

    def timings(self, regime: Regime) -> Samples | Bursts:
        """Return the samples in a regime. Do not call it on a record that was read from a file."""
        assert self.observation is not None
        return self.observation.timings(regime)

    def caution_in(self, regime: Regime) -> str:
        ratio = self.comparison(regime).ratio
        return self.caution if ratio is not None and ratio > GREAT_RATIO else ""

    @property
    def own(self) -> Comparison:
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
        return self.reason or self.own.reason

    @property
    def unproven_verdict(self) -> bool:
        """Whether the verdict is clear, but rests on an unproven check."""
        unclear = (None, Verdict.INVALID, Verdict.INCONCLUSIVE)
        return bool(self.unproven) and self.verdict not in unclear

    @classmethod
    def from_row(cls, row: Mapping[str, Any], comparisons: Iterable[Comparison] = ()) -> Record:
        """Make a record of a row. Integers in unknown columns are sizes. Raises `OutOfBounds`."""
        values = values_of(cls, row)
        # Pages print the caution unquoted, so no other text from a file may appear as one.
        if values.get("caution") != NO_SPECIALISED:
            values.pop("caution", None)
        values["shape"] = {
            name: value
            for name, value in row.items()
            if name not in cls.__dataclass_fields__ and type(value) is int
        }
        return cls(**values, comparisons=tuple(comparisons))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """A timed call or, in the regime `queue`, a burst of calls with null in optional columns."""

    run_id: Annotated[str, "the run"]
    case_id: Annotated[str, "the case"]
    implementation: Annotated[str, "the implementation"]
    regime: Annotated[Regime, "how the call was made: device, queue or graph"]
    attempt: Annotated[int, "samples of an attempt were interleaved", "1"]
    round: Annotated[int, "round of the sampling; rounds pair the implementations", "1"]
    calls: Annotated[int, "calls that were timed together: more than 1 in the queue", "1"]
    time_ms: Annotated[float, "time of a call", "ms"]
    order: Annotated[Int, "position within the round, from 0", "1"]
    at_s: Annotated[Float, "end of the sample, since the first round began, to a microsecond", "s"]
    escaped_ms: Annotated[
        Float, "part of time_ms in which the device worked after the end event", "ms"
    ]
    gap_hidden: Annotated[bool | None, "the call was queued before the spin kernel ended"]
    host_us: Annotated[Float, "time that the call held the CPU; 0 if no spin outlasted it", "µs"]
    sm_clock_mhz: Annotated[Int, "last reading of the SM clock before the sample; 0: none", "MHz"]


Table = type[Record] | type[Comparison] | type[SampleRow]


def columns(table: Table, sizes: Iterable[str] = ()) -> list[Column]:
    """Return the columns of a table in order. The columns of `sizes` come before `length`."""
    found = list(_COLUMNS[table])
    names = [column.name for column in found]
    place = names.index("length") if "length" in names else 0
    found[place:place] = size_columns(sizes)
    return found


def size_columns(sizes: Iterable[str]) -> list[Column]:
    return [Column(size, int, "1", f"size {size} of the op's shape") for size in sorted(sizes)]


def _read_columns(table: Table) -> tuple[Column, ...]:
    found = []
    hints = get_type_hints(table, include_extras=True)
    for member in fields(table):
        hint = hints[member.name]
        if get_origin(hint) is not Annotated:
            continue
        kind, meaning, *unit = get_args(hint)
        if get_origin(kind) in (Union, types.UnionType):
            kind = next(part for part in get_args(kind) if part is not type(None))
        kind = kind if isinstance(kind, type) else str  # a Literal
        is_required = member.default is MISSING and member.default_factory is MISSING
        word = kind if issubclass(kind, Enum) else None
        stored = str if issubclass(kind, str) else kind
        found.append(Column(member.name, stored, "".join(unit), meaning, word, is_required))
    return tuple(found)


def values_of(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a row by field. Raises `OutOfBounds` for an invalid value."""
    values = {column.name: column.read(row.get(column.name)) for column in _COLUMNS[table]}
    return {name: value for name, value in values.items() if value is not None}


_COLUMNS = {table: _read_columns(table) for table in (Record, Comparison, SampleRow)}
