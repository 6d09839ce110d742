"""The same matrices in several images, one after another, and one table of what came out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.table import Table

from nsabench.images.launch import INPUT, RESULTS, Launch, run
from nsabench.words import Role, Status, Verdict


@dataclass(frozen=True)
class Outcome:
    """A combo's run: its folder, the exit code, and its records (none where it broke off)."""

    combo: str
    folder: Path
    exit_code: int
    records: list[dict[str, Any]]


def run_all(
    combos: Sequence[str],
    matrices: Sequence[str],
    launch: Callable[[str, Sequence[str], Sequence[Path]], Launch],
    say: Callable[[str], None],
) -> list[Outcome]:
    """Run each combo; one that fails does not keep the next from running.

    `launch` makes the settings from a combo, nsabench's arguments and the files to show.
    """
    shown = [Path(name) for name in matrices if Path(name).is_file()]
    given = [f"{INPUT}/{Path(n).name}" if Path(n).is_file() else n for n in matrices]
    outcomes = []
    for combo in combos:
        say(f"== {combo}")
        settings = launch(combo, ["all", *given, "--out", f"{RESULTS}/{combo}"], shown)
        code = run(settings, say)
        folder = settings.results / combo
        outcomes.append(Outcome(combo, folder, code, read(folder)))
    return outcomes


def read(folder: Path) -> list[dict[str, Any]]:
    path = folder / "records.parquet"
    return pq.read_table(path).to_pylist() if path.is_file() else []


def table(outcomes: Sequence[Outcome]) -> Table:
    """Each candidate in each combo: cases that are ok, the median speedup, and its verdicts."""
    grid = Table(title="candidates in each image", title_justify="left", box=None, pad_edge=False)
    grid.add_column("implementation", no_wrap=True)
    for outcome in outcomes:
        grid.add_column(f"{outcome.combo}\nexit {outcome.exit_code}", justify="right")
    names = {
        (r["op"], r["implementation"])
        for o in outcomes
        for r in o.records
        if r["role"] == Role.CANDIDATE
    }
    for op, name in sorted(names):
        cells = [
            _cell([r for r in o.records if (r["op"], r["implementation"]) == (op, name)])
            for o in outcomes
        ]
        grid.add_row(f"{op} {name}", *cells)
    return grid


def _cell(records: Sequence[dict[str, Any]]) -> str:
    if not records:
        return "-"
    good = [r for r in records if r["status"] == Status.OK]
    text = f"{len(good)}/{len(records)} ok"
    speedups = [r["speedup"] for r in good if r["speedup"] is not None]
    if speedups:
        faster = sum(r["verdict"] == Verdict.FASTER for r in good)
        text += f", {statistics.median(speedups):.2f}x, {faster} faster"
    return text
