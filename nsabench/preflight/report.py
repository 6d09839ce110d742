"""Renders the results: a grid of kernels by Triton and architecture, failures, and resources."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from nsabench.machine.environment.pairs import belongs, numbers
from nsabench.model.vocabulary import Status
from nsabench.preflight.architectures import KIB
from nsabench.preflight.compiled_launch import CompiledLaunch

SHOWN_FAILURES = 20
MOST_COLUMNS = 8
SEVERITY = (
    Status.CRASHED,
    Status.TIMEOUT,
    Status.COMPILE_ERROR,
    Status.OUT_OF_MEMORY,
    Status.UNSUPPORTED,
    Status.SKIPPED,
)


def render(compiled: Sequence[CompiledLaunch]) -> RenderableType:
    parts: list[RenderableType] = [*_grids(compiled), *_unpaired(compiled), _resources(compiled)]
    problems = _problems(compiled)
    parts += [Text(""), *problems] if problems else []
    return Group(*parts)


def _row(launch: CompiledLaunch) -> tuple[str, str, str]:
    return launch.implementation, launch.op, launch.kernel or "(not recorded)"


def _grids(compiled: Sequence[CompiledLaunch]) -> list[Table]:
    """Return one grid, or one for each architecture if a terminal is too narrow."""
    if len({_column(c) for c in compiled}) <= MOST_COLUMNS:
        return [_grid(compiled, "launches compiled")]
    architectures = dict.fromkeys(c.architecture for c in compiled)
    return [
        _grid([c for c in compiled if c.architecture == name], f"launches compiled for {name}")
        for name in architectures
    ]


def _grid(compiled: Sequence[CompiledLaunch], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("implementation", no_wrap=True)
    table.add_column("kernel", no_wrap=True)
    columns = sorted({_column(c) for c in compiled}, key=_order)
    torches = Counter(triton for _, triton in {column[:2] for column in columns})
    for torch, triton, architecture in columns:
        mark = "*" if belongs(torch, triton) else ""
        of = f"\ntorch {torch}" if torches[triton] > 1 else ""
        table.add_column(f"{triton}{mark}{of}\n{architecture}", justify="right")
    rows = sorted({_row(c) for c in compiled})
    ops = Counter(name for name, _ in {row[:2] for row in rows})
    for row in rows:
        texts = [
            _count([c for c in compiled if _row(c) == row and _column(c) == column])
            for column in columns
        ]
        name, op, kernel = row
        table.add_row(f"{name} ({op})" if ops[name] > 1 else name, kernel, *texts)
    return table


def _unpaired(compiled: Sequence[CompiledLaunch]) -> list[Text]:
    """Explain the stars beside Tritons."""
    pairs = dict.fromkeys((c.torch, c.triton) for c in compiled)
    return [
        Text(f"* Triton {triton} with torch {torch} is {other}", "yellow")
        for torch, triton in pairs
        if (other := belongs(torch, triton))
    ]


def _column(launch: CompiledLaunch) -> tuple[str, str, str]:
    return launch.torch, launch.triton, launch.architecture


def _order(column: tuple[str, str, str]) -> tuple[Any, ...]:
    torch, triton, architecture = column
    return numbers(triton), int(architecture.removeprefix("sm_")), triton, numbers(torch), torch


def _count(compiled: Sequence[CompiledLaunch]) -> Text:
    if not compiled:
        return Text("-", "dim")
    good = sum(c.status == Status.OK for c in compiled)
    if good == len(compiled):
        return Text(f"{good} ok", "green")
    worst = next(s for s in SEVERITY if any(c.status == s for c in compiled))
    bad = any(c.failed for c in compiled)
    return Text(f"{good}/{len(compiled)}\n{worst}", "bold red" if bad else "dim")


def _resources(compiled: Sequence[CompiledLaunch]) -> Table:
    """Return the maxima over the launches of a kernel, for each architecture and Triton."""
    table = Table(
        title="\nmost that a launch takes", title_justify="left", box=None, pad_edge=False
    )
    for name in ("kernel", "triton", "arch"):
        table.add_column(name, no_wrap=True)
    heads = ("registers", "spill B", "shared KiB", "limit", "occupancy", "code KiB", "compile s")
    for name in heads:
        table.add_column(name, justify="right")
    built = [c for c in compiled if c.registers is not None]
    groups: dict[tuple[Any, ...], list[CompiledLaunch]] = {}
    for launch in built:
        key = (launch.kernel, numbers(launch.triton), int(launch.architecture.removeprefix("sm_")))
        groups.setdefault(key, []).append(launch)
    for key in sorted(groups):
        group = groups[key]
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


def _problems(compiled: Sequence[CompiledLaunch]) -> list[Text]:
    """Return a line for each way in which a kernel did not compile, failures first."""
    seen: dict[tuple[bool, str, str, str, str, str], list[CompiledLaunch]] = {}
    for launch in compiled:
        if launch.status != Status.OK:
            who = launch.kernel or launch.implementation
            key = (
                not launch.failed,
                who,
                launch.triton,
                launch.architecture,
                launch.status,
                launch.reason,
            )
            seen.setdefault(key, []).append(launch)
    lines = []
    for (benign, who, triton, architecture, status, reason), group in sorted(seen.items()):
        word = "" if benign else "FAILED "
        text = f"{word}{who} under Triton {triton} for {architecture}: {status}: {reason}"
        if len(group) > 1:
            text += f" ({len(group)} launches)"
        lines.append(Text(text, "dim" if benign else "red"))
    if len(lines) > SHOWN_FAILURES:
        left = len(lines) - SHOWN_FAILURES
        lines = [*lines[:SHOWN_FAILURES], Text(f"... and {left} more; the Parquet file has all")]
    return lines


class Progress:
    """Shows a count on a terminal, and elsewhere a line for each architecture under a Triton."""

    def __init__(self, console: Console, say: Callable[[str], None]) -> None:
        self._status = console.status("starting") if console.is_terminal else None
        self._say = say
        self._began = time.monotonic()
        self._done = self._failed = 0

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()

    def done(self, launch: CompiledLaunch) -> None:
        self._done += 1
        self._failed += launch.failed
        if self._status is not None:
            self._status.update(
                f"{self._done} compiled, {self._failed} failed; "
                f"Triton {launch.triton}, {launch.architecture}, "
                f"{launch.kernel or launch.implementation}"
            )

    def finished(self, compiled: Sequence[CompiledLaunch]) -> None:
        if self._status is None and compiled:
            failed = sum(launch.failed for launch in compiled)
            self._say(
                f"{time.monotonic() - self._began:5.0f} s  Triton {compiled[0].triton} "
                f"{compiled[0].architecture}: {len(compiled)} launches, {failed} failed"
            )
