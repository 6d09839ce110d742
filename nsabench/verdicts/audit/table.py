"""Read a CSV of timings whose columns have the names that its author gave them.

A wide table has a column of times for each implementation. In a long table, another column names
the implementation of each line.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from nsabench import limits, ops, reading
from nsabench.errors import UsageError
from nsabench.model.record import Record
from nsabench.model.vocabulary import DTYPE_NAMES, Direction, DType, Role, Status
from nsabench.ops import Shape

OP = "selection_rows"
# Names of one letter must match exactly. Longer names match in upper and lower case.
SIZES = {
    "N": ("N", "rows", "n_rows", "num_rows"),
    "H": ("H", "heads", "n_heads", "num_heads"),
    "D": ("D", "head_dim", "d_qk", "dim"),
    "Dv": ("Dv", "d_v", "head_dim_v", "v_dim"),
    "L": ("L", "length", "sel_len", "selected_length", "kv_len", "n_keys"),
}
OTHERS = {
    "speedup": ("speedup", "speed_up", "ratio"),
    "mae": ("mae", "mean_abs_err", "mean_abs_error", "l1"),
    "dtype": ("dtype", "precision"),
    "direction": ("direction",),
    "status": ("status", "result", "verdict"),
}
# Names of the column that names the implementations in a long table.
NAMES = (
    *("implementation", "impl", "kernel", "provider", "backend", "method"),
    *("variant", "library", "algorithm", "name"),
)
# Words in the name of an implementation. A name with words of both kinds is a baseline.
BASELINES = {"sdpa", "ref", "reference", "baseline", "torch", "pytorch", "eager", "naive", "masked"}
CANDIDATES = {"triton", "tri", "candidate", "kernel", "custom", "ours", "mine", "my", "fa2", "nsa"}
UNITS_MS = {"ms": 1.0, "us": 1e-3, "µs": 1e-3, "ns": 1e-6, "s": 1e3}
TYPICAL = {"median", "mean", "avg", "average", "time", "latency", "runtime", "duration", "elapsed"}
# A column with one of these words holds another result than the typical time of a call.
RESULT = re.compile(
    r"err|errors?|diff|deviation|mae|mse|rmse|rel|std|stdev|stddev|variance|cv|ci|[pq]\d+|min|max|"
    r"best|winner|faster|slower|speedup|[tg]flops?|flops|gbps|bandwidth|bw|throughput|host|cpu|"
    r"launches|util|utilization|occupancy|mfu|roofline|efficiency|percent|pct|mem|memory|bytes|"
    r"peak|power|energy|joules|watts|temp|temperature|clock|mhz|compile|reason|notes?|comment|"
    r"remark|ok|passed|correct|match|allclose|valid|actual|expected|samples"
)
# Columns with one of these names count repetitions.
REPEAT = re.compile(
    r"#|id|idx|index|no|nr|row|line|run|run_id|reps?|repeat|repetition|trial|attempt|round|iter|"
    r"iteration|timestamp|date|time"
)


@dataclass(frozen=True)
class ForeignRow:
    number: int
    cells: Mapping[str, str]

    def number_in(self, column: str | None) -> float | None:
        """Return a cell's number, which may be NaN or infinite, or None if it has no number."""
        try:
            return float(self.cells.get(column or "", ""))
        except ValueError:
            return None

    def value(self, column: str | None) -> float | None:
        value = self.number_in(column)
        return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Times:
    """A column of times, or the part of a long table about one implementation."""

    column: str
    implementation: str
    unit_ms: float  # how many ms one unit of a cell is
    role: Role | None  # None: not used
    named_in: str = ""  # the column of a long table that names the implementation

    def is_in(self, line: ForeignRow) -> bool:
        return not self.named_in or line.cells[self.named_in] == self.implementation

    def ms(self, line: ForeignRow) -> float | None:
        value = line.value(self.column)
        return value * self.unit_ms if value is not None and value > 0 else None


@dataclass(frozen=True)
class ForeignTable:
    lines: list[ForeignRow]
    times: list[Times]
    sizes: dict[str, str]
    others: dict[str, str]
    settings: list[str]  # columns that tell cases of the same sizes apart

    def with_role(self, role: Role) -> list[Times]:
        return [times for times in self.times if times.role is role]

    def measured(self) -> Iterator[tuple[ForeignRow, Times]]:
        for line in self.lines:
            for times in self.times:
                if times.role is not None and times.is_in(line):
                    yield line, times

    def cell(self, line: ForeignRow, other: str) -> str:
        return line.cells.get(self.others.get(other, ""), "")

    def label(self, line: ForeignRow) -> str:
        sizes = [f"{axis}={line.cells[column]}" for axis, column in self.sizes.items()]
        return " ".join(filter(None, [*sizes, self.cell(line, "dtype"), self._setting(line)]))

    def _setting(self, line: ForeignRow) -> str:
        return " ".join(f"{c}={line.cells[c]}" for c in self.settings if line.cells[c])

    def shape(self, line: ForeignRow) -> Shape | None:
        """Return the sizes of a case, or None if they are not complete and valid."""
        sizes = {axis: line.cells[column] for axis, column in self.sizes.items()}
        try:
            return ops.get(OP).shape_model.model_validate(sizes)
        except ValidationError:
            return None

    def records(self) -> list[Record]:
        records = (self._make_record(line, times) for line, times in self.measured())
        return [record for record in records if record is not None]

    def _make_record(self, line: ForeignRow, times: Times) -> Record | None:
        time, shape = times.ms(line), self.shape(line)
        if shape is None or times.role is None:
            return None
        dtype = self._dtype(line)
        # Assume the work of a forward, since every timed call does at least that.
        work = ops.get(OP).work(shape, dtype, "dense", 0)
        is_backward = self.cell(line, "direction").lower().startswith("b")
        is_candidate = times.role is Role.CANDIDATE
        record = Record(
            run_id="",
            case_id=self.label(line),
            op=OP,
            implementation=times.implementation,
            device="cuda",
            role=times.role,
            status=Status.OK if time is not None else Status.SKIPPED,
            dtype=dtype,
            shape=shape.model_dump(),
            length=ops.get(OP).length(shape),
            bytes_min=work.bytes_min,
            flops=work.flops,
            direction=Direction.BACKWARD if is_backward else Direction.FORWARD,
            distribution=self._setting(line),
            mae=line.number_in(self.others.get("mae")) if is_candidate else None,
        )
        timed = replace(record.own, median_ms=time)
        return replace(record, comparisons=(timed,)) if time is not None else record

    def _dtype(self, line: ForeignRow) -> DType:
        name = self.cell(line, "dtype").lower().removeprefix("torch.")
        # The default is 16 bits, the fewest, so that no time is called impossible by mistake.
        return DType(name) if name in {*DType, *DTYPE_NAMES} else DType.FLOAT16


def read_table(
    path: Path,
    candidates: Collection[str] = (),
    baselines: Collection[str] = (),
    unit: str = "",
) -> ForeignTable:
    """Read a table. Raises `UsageError` if it cannot be read, or has no candidate.

    Without `candidates` and `baselines`, words in names decide. `unit` is for columns without one.
    """
    try:
        columns, lines = _parse(reading.read(path, limits.CSV))
    except (OSError, reading.OutOfBounds) as error:
        why = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else error
        raise UsageError(f"{path} {why}", "give a CSV file of timings.") from None
    named = {*map(str.lower, candidates), *map(str.lower, baselines)}
    found = [t for c in columns if (t := _find_times(c, unit, named)) is not None]
    if not found or not lines:
        raise UsageError(
            f"{path} holds no timings: its columns are {', '.join(columns) or 'missing'}",
            "name time columns with their unit, such as triton_ms, or give --unit.",
        )
    times = [_set_role(t, candidates, baselines) for t in _spread(found, columns, lines)]
    names = [t.implementation for t in times]
    known = {name.lower() for name in names}
    for name in (*candidates, *baselines):
        if name.lower() not in known:
            raise UsageError(
                f"{path} has no times of {name!r}", f"it has times of {', '.join(names)}."
            )
    if all(t.role is not Role.CANDIDATE for t in times):
        raise UsageError(
            f"{path} does not say which of {', '.join(names)} is the candidate",
            "name it with --candidate NAME.",
        )
    sizes, others = _find_columns(columns, SIZES), _find_columns(columns, OTHERS)
    known = {*sizes.values(), *others.values(), *(t.column for t in times)}
    known -= {others.get("direction", "")}
    known |= {t.named_in for t in times}
    unknown = [column for column in columns if column not in known]
    table = ForeignTable(lines, times, sizes, others, [])
    return replace(table, settings=_find_settings(table, unknown))


def _parse(data: bytes) -> tuple[list[str], list[ForeignRow]]:
    columns: list[str] = []
    lines: list[ForeignRow] = []
    try:
        text = io.StringIO(data.decode("utf-8-sig"), newline="")
        reader = csv.reader(text, skipinitialspace=True)
        for cells in filter(None, reader):
            stripped = [cell.strip() for cell in cells]
            if not columns:
                columns = stripped
                continue
            filled = zip(columns, stripped + [""] * len(columns), strict=False)
            lines.append(ForeignRow(reader.line_num, dict(filled)))
            if len(lines) > limits.CSV_ROWS or len(columns) > limits.CSV_COLUMNS:
                raise reading.OutOfBounds(
                    f"has more than {limits.CSV_ROWS} rows or {limits.CSV_COLUMNS} columns"
                )
    except UnicodeDecodeError:
        raise reading.OutOfBounds("is not UTF-8 text") from None
    except csv.Error as error:
        raise reading.OutOfBounds(f"is not CSV: {error}") from None
    return columns, lines


def _split(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9µ#]+", name.lower()) if word]


def _find_times(column: str, unit: str, named: Collection[str]) -> Times | None:
    """Return the times of a column, or None if it holds none.

    The implementation has the column's name, without a unit and `TYPICAL` words at the end.
    """
    words = _split(column)
    if len(words) > 1 and words[-1] in UNITS_MS:
        unit_ms = UNITS_MS[words.pop()]
    elif unit and (column.lower() in named or {*words} & (BASELINES | CANDIDATES | TYPICAL)):
        unit_ms = UNITS_MS[unit]
    else:
        return None
    if any(map(RESULT.fullmatch, words)):
        return None
    while words and words[-1] in TYPICAL:
        words.pop()
    return Times(column, "_".join(words), unit_ms, None)


def _spread(
    found: Sequence[Times], columns: Sequence[str], lines: Sequence[ForeignRow]
) -> list[Times]:
    first = found[0]
    naming = next((c for c in columns if "_".join(_split(c)) in NAMES), None)
    if first.implementation or naming is None:
        return [replace(t, implementation=t.implementation or t.column) for t in found]
    names = dict.fromkeys(line.cells[naming] for line in lines)
    return [replace(first, implementation=name, named_in=naming) for name in names]


def _set_role(times: Times, candidates: Collection[str], baselines: Collection[str]) -> Times:
    name, words = times.implementation.lower(), {*_split(times.implementation)}
    if name in map(str.lower, candidates):
        return replace(times, role=Role.CANDIDATE)
    if name in map(str.lower, baselines) or (not baselines and words & BASELINES):
        return replace(times, role=Role.BASELINE)
    if not candidates and not words & BASELINES and words & CANDIDATES:
        return replace(times, role=Role.CANDIDATE)
    return times


def _find_columns(columns: list[str], wanted: Mapping[str, Sequence[str]]) -> dict[str, str]:
    found = {}
    for key, names in wanted.items():
        for name, column in ((n, c) for n in reversed(names) for c in reversed(columns)):
            words = "_".join(_split(column))
            # Two examples are triton_speedup and speedup_vs_sdpa.
            in_part = name == "speedup" and name in words.split("_")
            if column == name or (len(name) > 1 and words == name.lower()) or in_part:
                found[key] = column
    return found


def _find_settings(table: ForeignTable, columns: Sequence[str]) -> list[str]:
    """Return a few columns that tell lines of the same sizes apart."""
    cells = {c: [line.cells[c] for line in table.lines] for c in columns}
    settings = [c for c in columns if _is_setting(c, cells[c])]
    # Prefer columns with few values: batch times length, for example, has more than its factors.
    settings.sort(key=lambda c: len(set(cells[c])))
    naming = table.times[0].named_in
    cases: list[tuple[str, ...]] = [
        (table.label(line), line.cells.get(naming, "")) for line in table.lines
    ]
    chosen = []
    for column in settings:
        finer = [(*case, cell) for case, cell in zip(cases, cells[column], strict=True)]
        if len(set(finer)) > len(set(cases)):
            chosen.append(column)
            cases = finer
    return [column for column in columns if column in chosen]


def _is_setting(column: str, cells: Sequence[str]) -> bool:
    words = _split(column)
    if REPEAT.fullmatch("_".join(words)) or any(map(RESULT.fullmatch, words)):
        return False
    # Measured values are fractions that do not repeat.
    filled = [cell for cell in cells if cell]
    return not any(map(_is_fraction, filled)) or 2 * len(set(filled)) <= len(filled)


def _is_fraction(cell: str) -> bool:
    try:
        return not float(cell).is_integer()
    except (ValueError, OverflowError):
        return False
