"""The page of an archive: how candidates went over dates and versions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from nsabench.errors import UsageError
from nsabench.evidence.archive.archive import Archive, ArchivedRun
from nsabench.output import trends
from nsabench.output.report import html
from nsabench.output.report.files import replace

SCRIPTS = ("archive.js",)
TEXTS = (
    "run",
    "date",
    "gpu",
    "versions",
    "combo",
    "commit",
    "kernels_commit",
    "nsabench",
    "trust",
    "op",
    "implementation",
    "regime",
    "caution",
    "role",
    "status",
    "cases_hash",
)
NUMBERS = ("at", "cases", "ok", "failed", "compared", "faster", "speedup", "time_ms")


def write(archive: Archive, path: Path, runs: Sequence[ArchivedRun] | None = None) -> Path:
    """runs: those that it is about, of a survey; without, all sound ones.

    Raises `UsageError` for an archive without a candidate, and `EnvironmentRefused` where the
    extra `report` is not installed.
    """
    return replace(path, render(archive, runs))


def render(archive: Archive, runs: Sequence[ArchivedRun] | None = None) -> str:
    runs = archive.runs() if runs is None else runs
    if not runs:
        raise UsageError(f"{archive.store.location} holds no runs", "add one: archive add RUN.")
    rows = [row for run in sorted(runs, key=_date) for row in trends.rows(run, archive)]
    if not rows:
        raise UsageError(
            f"no run in {archive.store.location} has a candidate", "add one: archive add RUN."
        )
    versions = sorted({row["versions"] for row in rows}, key=_numbers)
    return html.render(
        "archive.html.j2",
        SCRIPTS,
        {**html.rows(rows, TEXTS, NUMBERS), "versions": versions},
        location=archive.store.location,
        runs=len({row["run"] for row in rows}),
        gpus=sorted({row["gpu"] for row in rows}),
        versions=versions,
        candidates=len({(row["op"], row["implementation"]) for row in rows}),
        cautions=any(row["caution"] for row in rows),
        begins=rows[0]["date"],
        ends=rows[-1]["date"],
        invalid=sorted({row["run"] for row in rows if row["status"] == "invalid"}),
    )


def _date(run: ArchivedRun) -> tuple[datetime, str]:
    return run.statement.predicate.plan.created, run.run_id


def _numbers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]
