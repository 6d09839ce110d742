"""Renders results as a grid, failures and resources, and writes them as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nsabench.machine.environment.pairs import describe_mismatch, numbers
from nsabench.model.vocabulary import Status
from nsabench.preflight.architectures import KIB
from nsabench.preflight.launch import CompiledLaunch
from nsabench.verdicts.parquet import replace

SHOWN_FAILURES = 20
MOST_COLUMNS = 8


def render(compiled: Sequence[CompiledLaunch]) -> RenderableType:
    parts: list[RenderableType] = [
        *_make_grids(compiled),
        *_explain_unpaired(compiled),
        _list_resources(compiled),
    ]
    problems = _list_problems(compiled)
    parts += [Text(""), *problems] if problems else []
    return Group(*parts)


def _make_row(launch: CompiledLaunch) -> tuple[str, str, str]:
    return launch.implementation, launch.op, launch.kernel or "(not recorded)"


def _name_column(launch: CompiledLaunch) -> tuple[str, str, str]:
    return launch.torch, launch.triton, launch.architecture


def order_of(launch: CompiledLaunch) -> tuple[Any, ...]:
    number = int(launch.architecture.removeprefix("sm_"))
    return numbers(launch.triton), number, launch.triton, numbers(launch.torch), launch.torch


def _make_grids(compiled: Sequence[CompiledLaunch]) -> list[Table]:
    """Return one grid, or one an architecture if the terminal is narrow."""
    if len({_name_column(c) for c in compiled}) <= MOST_COLUMNS:
        return [_make_grid(compiled, "launches compiled")]
    architectures = dict.fromkeys(c.architecture for c in compiled)
    return [
        _make_grid([c for c in compiled if c.architecture == name], f"launches compiled for {name}")
        for name in architectures
    ]


def _make_grid(compiled: Sequence[CompiledLaunch], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("implementation", no_wrap=True)
    table.add_column("kernel", no_wrap=True)
    columns = list(dict.fromkeys(_name_column(c) for c in sorted(compiled, key=order_of)))
    torches = Counter(triton for _, triton in {column[:2] for column in columns})
    for torch, triton, architecture in columns:
        mark = "*" if describe_mismatch(torch, triton) else ""
        of = f"\ntorch {torch}" if torches[triton] > 1 else ""
        table.add_column(f"{triton}{mark}{of}\n{architecture}", justify="right")
    rows = sorted({_make_row(c) for c in compiled})
    ops = Counter(name for name, _ in {row[:2] for row in rows})
    for row in rows:
        texts = [
            _count_failed(
                [c for c in compiled if _make_row(c) == row and _name_column(c) == column]
            )
            for column in columns
        ]
        name, op, kernel = row
        table.add_row(f"{name} ({op})" if ops[name] > 1 else name, kernel, *texts)
    return table


def _count_failed(compiled: Sequence[CompiledLaunch]) -> Text:
    if not compiled:
        return Text("-", "dim")
    good = sum(c.status == Status.OK for c in compiled)
    if good == len(compiled):
        return Text(f"{good} ok", "green")
    failed = [c for c in compiled if c.failed]
    [(status, _)] = Counter(
        c.status for c in failed or compiled if c.status != Status.OK
    ).most_common(1)
    return Text(f"{good}/{len(compiled)}\n{status}", "bold red" if failed else "dim")


def _explain_unpaired(compiled: Sequence[CompiledLaunch]) -> list[Text]:
    pairs = dict.fromkeys((c.torch, c.triton) for c in compiled)
    return [
        Text(f"* Triton {triton} with torch {torch} is {other}", "yellow")
        for torch, triton in pairs
        if (other := describe_mismatch(torch, triton))
    ]


def _list_resources(compiled: Sequence[CompiledLaunch]) -> Table:
    """Return the maxima over the launches of a kernel, for each architecture and Triton."""
    table = Table(
        title="\nmost that a launch takes", title_justify="left", box=None, pad_edge=False
    )
    for name in ("kernel", "triton", "arch"):
        table.add_column(name, no_wrap=True)
    heads = ("registers", "spill B", "shared KiB", "limit", "occupancy", "code KiB", "compile s")
    for name in heads:
        table.add_column(name, justify="right")
    groups: dict[tuple[Any, ...], list[CompiledLaunch]] = {}
    for launch in compiled:
        if launch.registers is not None:
            groups.setdefault((launch.kernel, *order_of(launch)[:2]), []).append(launch)
    for _, group in sorted(groups.items()):
        first = group[0]
        spilled = max(c.spill_bytes or 0 for c in group)
        table.add_row(
            first.kernel,
            first.triton,
            first.architecture,
            str(max(c.registers or 0 for c in group)),
            Text(str(spilled), "yellow" if spilled else ""),
            f"{max(c.shared_bytes or 0 for c in group) / KIB:.1f}",
            f"{(first.shared_limit_bytes or 0) // KIB}",
            f"{min(c.occupancy or 0.0 for c in group):.0%}",
            f"{max(c.code_bytes or 0 for c in group) / KIB:.1f}",
            f"{max(c.compile_s or 0.0 for c in group):.1f}",
        )
    return table


def _list_problems(compiled: Sequence[CompiledLaunch]) -> list[Text]:
    """Return a line for each way in which a kernel did not compile, failures first."""
    seen: Counter[tuple[bool, str]] = Counter()
    for c in compiled:
        if c.status != Status.OK:
            where = f"{c.kernel or c.implementation} under Triton {c.triton} for {c.architecture}"
            seen[not c.failed, f"{where}: {c.status}: {c.reason}"] += 1
    lines = []
    for (benign, text), count in sorted(seen.items()):
        more = f" ({count} launches)" if count > 1 else ""
        lines.append(Text(f"{'' if benign else 'FAILED '}{text}{more}", "dim" if benign else "red"))
    if len(lines) > SHOWN_FAILURES:
        left = len(lines) - SHOWN_FAILURES
        lines = [*lines[:SHOWN_FAILURES], Text(f"... and {left} more; the Parquet file has all")]
    return lines


_TYPES: dict[Any, pa.DataType] = {
    str: pa.string(),
    Status: pa.string(),
    bool: pa.bool_(),
    int: pa.int64(),
    int | None: pa.int64(),
    float | None: pa.float64(),
}


def write(compiled: Sequence[CompiledLaunch], path: Path) -> None:
    """Write all rows as Parquet in one step."""
    schema = pa.schema(
        [
            pa.field(name, _TYPES[field.annotation], metadata={"meaning": field.description or ""})
            for name, field in CompiledLaunch.model_fields.items()
        ]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, pa.Table.from_pylist([launch.model_dump() for launch in compiled], schema=schema))
