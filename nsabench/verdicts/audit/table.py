"""Read a CSV of timings whose columns have the names that its author gave them."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from nsabench import limits, ops, reading
from nsabench.errors import UsageError
from nsabench.model.record import Record
from nsabench.model.vocabulary import (
    DTYPE_NAMES,
    Direction,
    DType,
    Mode,
    Role,
    Status,
)
from nsabench.ops import Shape

OP = "selection_rows"

# Names of one letter must match exactly. Longer names match in any case, with - or blank for _.
SIZES = {
    "N": ("N", "rows", "n_rows", "num_rows"),
    "H": ("H", "heads", "n_heads", "num_heads"),
    "D": ("D", "head_dim", "d_qk", "dim"),
    "Dv": ("Dv", "d_v", "head_dim_v", "v_dim"),
    "L": ("L", "length", "sel_len", "selected_length", "kv_len", "n_keys"),
}
CANDIDATES = ("triton", "tri", "candidate", "kernel", "custom", "ours", "mine", "fa2", "nsa")
BASELINES = ("sdpa", "ref", "reference", "baseline", "torch", "pytorch", "eager", "naive", "masked")
OTHERS = {
    "speedup": ("speedup", "speed_up", "ratio"),
    "mae": ("mae", "mean_abs_err", "mean_abs_error", "l1"),
    "dtype": ("dtype", "precision"),
    "distribution": ("distribution", "dist"),
    "direction": ("direction",),
    "mode": ("mode",),  # some authors mean a distribution
    "streams": ("streams", "n_streams", "num_streams"),
    "spans": ("n_spans", "nspans", "num_spans", "spans"),
    "status": ("status", "result", "verdict"),
}
# A column of host times or launches ends so, after the name of its implementation.
HOST = re.compile(r"(^|[_\s])(host|cpu)(_time)?$")
LAUNCHES = re.compile(r"(^|[_\s])(n_|num_)?(kernel_)?launches$")
# The driver's own call takes this long (H200, docs/explanation/regimes.md): no launcher is faster.
LAUNCH_MS = 1.3e-3
UNITS_MS = {"_ms": 1.0, "_us": 1e-3, "_ns": 1e-6, "_s": 1e3}
DIRECTIONS = {
    "": Direction.FORWARD,
    "forward": Direction.FORWARD,
    "fwd": Direction.FORWARD,
    "backward": Direction.BACKWARD,
    "bwd": Direction.BACKWARD,
}
MODES = {
    "": Mode.STREAM,
    "stream": Mode.STREAM,
    "eager": Mode.STREAM,
    "graph": Mode.GRAPH,
    "cuda_graph": Mode.GRAPH,
    "cudagraph": Mode.GRAPH,
}

# Columns with one of these words in their name hold results, not settings.
RESULT = re.compile(
    r"err|errors?|diff|deviation|mae|mse|rmse|rel|std|stdev|stddev|variance|cv|ci|[pq]\d+|median|"
    r"avg|average|best|winner|faster|slower|speedup|[tg]flops?|flops|gbps|bandwidth|bw|throughput|"
    r"util|utilization|occupancy|mfu|roofline|efficiency|percent|pct|mem|memory|bytes|peak|power|"
    r"energy|joules|watts|temp|temperature|clock|mhz|compile|reason|notes?|comment|remark|ok|"
    r"passed|correct|match|allclose|valid|actual|expected|samples"
)
# Columns with one of these names count repetitions.
REPEAT = re.compile(
    r"#|id|idx|index|no|nr|row|line|run|run_id|reps?|repeat|repetition|trial|attempt|round|iter|"
    r"iteration|timestamp|date|time"
)


@dataclass(frozen=True)
class Line:
    number: int
    cells: Mapping[str, str]

    def value(self, column: str | None) -> float | None:
        value = self.any_number(column)
        return value if value is not None and math.isfinite(value) else None

    def any_number(self, column: str | None) -> float | None:
        """Return the cell as any number, NaN and infinity included, else None."""
        try:
            return float(self.cells.get(column or "", ""))
        except ValueError:
            return None


@dataclass(frozen=True)
class Table:
    """A table with the roles of its columns.

    times: the unit of a column, in ms. hosts: columns of host time and their units in ms, by
    implementation in lower case; stated times come before launches. The key "" is for a column that
    does not name an implementation.
    """

    lines: list[Line]
    columns: list[str]
    sizes: dict[str, str]
    others: dict[str, str]
    times: dict[str, float]
    candidate: str | None
    baselines: list[str]
    hosts: tuple[dict[str, tuple[str, float]], ...] = ()

    @property
    def first_size(self) -> str | None:
        return next((c for c in self.columns if c not in self.times), None)

    def time_ms(self, line: Line, column: str) -> float | None:
        value = line.value(column)
        return value * self.times[column] if value is not None and value > 0 else None

    def label(self, line: Line) -> str:
        """Return the line in words: sizes or first cell, and what else identifies its case."""
        return self._words(line, self._distribution(line))

    def _words(self, line: Line, distribution: str) -> str:
        sizes = [f"{axis}={line.cells[column]}" for axis, column in self.sizes.items()]
        if not sizes:
            sizes = [f"{c}={line.cells[c]}" for c in self._unknown[:1]]
        words = [*sizes, self.cell(line, "dtype"), distribution]
        if self._direction(line) is Direction.BACKWARD:
            words.append("backward")
        if self._streams(line) != 1:
            words.append(f"{self._streams(line)} streams")
        if self.mode(line) is Mode.GRAPH:
            words.append("graph")
        if spans := self.cell(line, "spans"):
            words.append(f"{spans} spans")
        return " ".join(word for word in words if word)

    def cell(self, line: Line, other: str) -> str:
        return line.cells.get(self.others.get(other, ""), "")

    def _direction(self, line: Line) -> Direction | None:
        return DIRECTIONS.get(self.cell(line, "direction").lower())

    def mode(self, line: Line) -> Mode | None:
        return MODES.get(self.cell(line, "mode").lower())

    def _streams(self, line: Line) -> int:
        return int(line.value(self.others.get("streams")) or 1)

    @cached_property
    def _unknown(self) -> list[str]:
        known = {*self.times, *self.sizes.values(), *self.others.values()}
        known |= {column for columns in self.hosts for column, _ in columns.values()}
        return [column for column in self.columns if column not in known]

    @cached_property
    def _settings(self) -> list[str]:
        known = [self._words(line, self._stated_distribution(line)) for line in self.lines]
        return _find_distinguishing([line.cells for line in self.lines], known, self._unknown)

    def _distribution(self, line: Line) -> str:
        """Return the distribution, and all settings that have no field of their own."""
        settings = [f"{c}={line.cells[c]}" for c in self._settings if line.cells[c]]
        return " ".join([w for w in [self._stated_distribution(line)] if w] + settings)

    def _stated_distribution(self, line: Line) -> str:
        """Return the distribution with unknown words for direction and mode, which also make
        another case."""
        words = [self.cell(line, "distribution")]
        words += [self.cell(line, "direction")] if self._direction(line) is None else []
        words += [self.cell(line, "mode")] if self.mode(line) is None else []
        return " ".join(word for word in words if word)

    def records(self) -> list[Record]:
        """Return a record for each timed implementation in each line that gives all sizes."""
        roles = dict.fromkeys(self.baselines, Role.BASELINE)
        if self.candidate:
            roles[self.candidate] = Role.CANDIDATE
        records = (
            self._make_record(line, c, role) for line in self.lines for c, role in roles.items()
        )
        return [record for record in records if record is not None]

    def shape(self, line: Line) -> Shape | None:
        """Return the sizes of the line's case, or None if some are missing or not valid."""
        sizes = {axis: line.cells[c] for axis, c in self.sizes.items()}
        try:
            return ops.get(OP).shape_model.model_validate(sizes)
        except ValidationError:
            return None

    def _make_record(self, line: Line, column: str, role: Role) -> Record | None:
        time, shape = self.time_ms(line, column), self.shape(line)
        if shape is None:
            return None
        dtype = self._dtype(line)
        # The work of a forward: every timed call does at least that.
        work = ops.get(OP).work(shape, dtype, "dense", 0)
        spans = line.value(self.others.get("spans"))
        record = Record(
            run_id="",
            case_id=self.label(line),
            op=OP,
            implementation=name_of(column),
            device="cuda",
            role=role,
            status=Status.OK if time is not None else Status.SKIPPED,
            dtype=dtype,
            shape=shape.model_dump() | ({"n_spans": int(spans)} if spans else {}),
            length=ops.get(OP).length(shape),
            bytes_min=work.bytes_min,
            flops=work.flops,
            direction=self._direction(line) or Direction.FORWARD,
            distribution=self._distribution(line),
            streams=self._streams(line),
            mode=self.mode(line) or Mode.STREAM,
            mae=line.any_number(self.others.get("mae")) if role is Role.CANDIDATE else None,
        )
        timed = replace(record.own, median_ms=time)
        return replace(record, comparisons=(timed,)) if time is not None else record

    def _dtype(self, line: Line) -> DType:
        name = self.cell(line, "dtype").lower().removeprefix("torch.")
        name = DTYPE_NAMES.get(name, name)
        # By default the smaller format: with fewer bytes no time is wrongly called impossible.
        return DType(name) if name in set(DType) else DType.FLOAT16


def name_of(column: str) -> str:
    return next((column[: -len(u)] for u in UNITS_MS if column.lower().endswith(u)), column)


def _parse(data: bytes) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the columns, and the line number and cells of each row that is not blank.

    Raises `OutOfBounds` for a file that is too large or is not CSV.
    """
    columns: list[str] = []
    rows: list[tuple[int, list[str]]] = []
    try:
        text = io.StringIO(data.decode("utf-8-sig"), newline="")
        reader = csv.reader(text, skipinitialspace=True)
        for cells in filter(None, reader):
            stripped = [cell.strip() for cell in cells]
            if not columns:
                columns = stripped
                continue
            rows.append((reader.line_num, (stripped + [""] * len(columns))[: len(columns)]))
            if len(rows) > limits.CSV_ROWS or len(columns) > limits.CSV_COLUMNS:
                raise reading.OutOfBounds(
                    f"has more than {limits.CSV_ROWS} rows or {limits.CSV_COLUMNS} columns"
                )
    except UnicodeDecodeError:
        raise reading.OutOfBounds("is not UTF-8 text") from None
    except csv.Error as error:
        raise reading.OutOfBounds(f"is not CSV: {error}") from None
    return columns, rows


def read(path: Path) -> Table:
    """Read a table. Raises `UsageError` if the file cannot be read or has no time column."""
    try:
        columns, rows = _parse(reading.read(path, limits.CSV))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "give a CSV file.") from None
    except reading.OutOfBounds as error:
        raise UsageError(f"{path} {error}", "give a CSV file of timings.") from None
    lines = [Line(number, dict(zip(columns, cells, strict=True))) for number, cells in rows]
    times = {c: unit for c in columns for u, unit in UNITS_MS.items() if c.lower().endswith(u)}
    stated = {
        HOST.sub("", name_of(c).lower()): (c, times.pop(c))
        for c in list(times)
        if HOST.search(name_of(c).lower())
    }
    launches = {
        LAUNCHES.sub("", c.lower()): (c, LAUNCH_MS) for c in columns if LAUNCHES.search(c.lower())
    }
    if not times or not lines:
        raise UsageError(
            f"{path} holds no timings: its columns are {', '.join(columns) or 'missing'}",
            "name time columns with their unit, for example triton_ms and sdpa_ms.",
        )
    candidate = next((c for c in times if name_of(c).lower() in CANDIDATES), None)
    return Table(
        lines=lines,
        columns=columns,
        sizes=_find_columns(columns, SIZES),
        others=_find_columns(columns, OTHERS),
        times=times,
        hosts=(stated, launches),
        candidate=candidate,
        baselines=[
            c for c in times if c != candidate and name_of(c).lower().split("_")[0] in BASELINES
        ],
    )


def _find_columns(columns: list[str], wanted: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the first column that has one of the names of each entry, if there is one."""
    found = {}
    for key, names in wanted.items():
        for name, column in ((n, c) for n in reversed(names) for c in reversed(columns)):
            plain = column.lower().replace("-", "_").replace(" ", "_")
            if column == name or (len(name) > 1 and plain == name.lower()):
                found[key] = column
    return found


def _find_distinguishing(
    lines: Sequence[Mapping[str, str]], known: Sequence[str], columns: Sequence[str]
) -> list[str]:
    """Return the fewest columns that distinguish lines with the same known case, in words."""
    candidates = [c for c in columns if _is_setting(c, [line.get(c, "") for line in lines])]
    # A column that follows from others, such as batch times length, has more values than they.
    candidates.sort(key=lambda c: len({line.get(c) for line in lines}))
    cases: list[tuple[str, ...]] = [(words,) for words in known]
    telling = []
    for column in candidates:
        if len(set(cases)) == len(lines):
            break
        finer = [(*case, line.get(column, "")) for case, line in zip(cases, lines, strict=True)]
        if len(set(finer)) > len(set(cases)):
            telling.append(column)
            cases = finer
    return [column for column in columns if column in telling]


def _is_setting(column: str, cells: Sequence[str]) -> bool:
    name = re.sub(r"[\s\-.]+", "_", column.strip().lower())
    if REPEAT.fullmatch(name) or any(map(RESULT.fullmatch, re.split(r"[_/()%]+", name))):
        return False
    # Measured values are fractions that do not repeat.
    filled = [cell for cell in cells if cell]
    return not any(map(_is_fraction, filled)) or 2 * len(set(filled)) <= len(filled)


def _is_fraction(cell: str) -> bool:
    try:
        return not float(cell).is_integer()
    except (ValueError, OverflowError):
        return False
