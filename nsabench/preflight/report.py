"""Render compiled launches as a grid and as lists of resources and problems; write their table."""

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
from nsabench.output import grouped
from nsabench.preflight.launch import CompiledLaunch
from nsabench.preflight.targets import KIB
from nsabench.verdicts.tables import write_table

SHOWN_FAILURES = 20


def sort_key(launch: CompiledLaunch) -> tuple[Any, ...]:
    return numbers(launch.triton), int(launch.architecture.removeprefix("sm_"))


def render(compiled: Sequence[CompiledLaunch]) -> RenderableType:
    parts: list[RenderableType] = []
    for triton, launches in grouped(compiled, lambda c: c.triton).items():
        unpaired = describe_mismatch(launches[0].torch, triton)
        parts += [", ".join(filter(None, [f"Triton {triton}", unpaired])), _make_grid(launches)]
    return Group(*parts, _list_resources(compiled), *_list_problems(compiled))


def _make_grid(compiled: Sequence[CompiledLaunch]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("implementation", no_wrap=True)
    table.add_column("kernel", no_wrap=True)
    architectures = list(dict.fromkeys(c.architecture for c in compiled))
    for architecture in architectures:
        table.add_column(architecture, justify="right")
    kernels = grouped(compiled, lambda c: (c.implementation, c.op, c.kernel or "(not recorded)"))
    ops = Counter(name for name, _ in {row[:2] for row in kernels})
    for (name, op, kernel), launches in sorted(kernels.items()):
        by_architecture = grouped(launches, lambda c: c.architecture)
        texts = [_count_failed(by_architecture.get(name, [])) for name in architectures]
        table.add_row(f"{name} ({op})" if ops[name] > 1 else name, kernel, *texts)
    return table


def _count_failed(compiled: Sequence[CompiledLaunch]) -> Text:
    good = sum(c.status == Status.OK for c in compiled)
    if good == len(compiled):
        return Text(f"{good} ok", "green") if compiled else Text("-", "dim")
    failed = [c for c in compiled if c.failed]
    status = next(c.status for c in failed or compiled if c.status != Status.OK)
    return Text(f"{good}/{len(compiled)}\n{status}", "bold red" if failed else "dim")


def _list_resources(compiled: Sequence[CompiledLaunch]) -> Table:
    table = Table(title="most that a launch takes", title_justify="left", box=None, pad_edge=False)
    for name in ("kernel", "triton", "arch"):
        table.add_column(name, no_wrap=True)
    for name in ("registers", "spill B", "shared KiB", "limit", "cubin KiB", "compile s"):
        table.add_column(name, justify="right")
    measured = [c for c in compiled if c.registers is not None]
    by_kernel = grouped(measured, lambda c: (c.kernel, *sort_key(c)))
    for (kernel, *_), group in sorted(by_kernel.items()):
        spilled = max(c.spill_bytes or 0 for c in group)
        table.add_row(
            kernel,
            group[0].triton,
            group[0].architecture,
            str(max(c.registers or 0 for c in group)),
            Text(str(spilled), "yellow" if spilled else ""),
            f"{max(c.shared_bytes or 0 for c in group) / KIB:.1f}",
            f"{(group[0].shared_limit_bytes or 0) // KIB}",
            f"{max(c.cubin_bytes or 0 for c in group) / KIB:.1f}",
            f"{max(c.compile_s or 0.0 for c in group):.1f}",
        )
    return table


def _list_problems(compiled: Sequence[CompiledLaunch]) -> list[Text]:
    """Say which kernels did not compile and why, failures first, at most `SHOWN_FAILURES`."""
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
        lines = [*lines[:SHOWN_FAILURES], Text(f"... and {left} more, in the Parquet file")]
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
    schema = pa.schema(
        [
            pa.field(name, _TYPES[field.annotation], metadata={"meaning": field.description or ""})
            for name, field in CompiledLaunch.model_fields.items()
        ]
    )
    write_table(
        path, pa.Table.from_pylist([launch.model_dump() for launch in compiled], schema=schema)
    )
