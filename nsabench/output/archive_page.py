"""The page of an archive: how candidates went over dates and versions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nsabench.errors import UsageError
from nsabench.evidence.archive.archive import Archive, ArchivedRun
from nsabench.evidence.archive.query import query
from nsabench.output.report import html
from nsabench.output.report.files import replace

SCRIPTS = ("archive.js",)
# Means are of the cases that have a ratio; `cases_hash` tells whether two are of the same ones.
TRENDS = """
SELECT run_id, created, gpu, records.torch, records.triton, combo, runs.nsabench, commit,
  kernels_commit, trust, controls_caught, op, implementation,
  count(*) AS cases,
  count(*) FILTER (status = 'ok') AS ok,
  count(*) FILTER (status NOT IN ('ok', 'unsupported', 'skipped')) AS failed,
  count(speedup) AS compared,
  count(*) FILTER (verdict = 'faster') AS faster,
  exp(avg(ln(speedup))) AS speedup,
  exp(avg(ln(median_ms)) FILTER (speedup IS NOT NULL)) AS time_ms,
  md5(string_agg(case_id, ' ' ORDER BY case_id) FILTER (speedup IS NOT NULL)) AS cases_hash
FROM records JOIN runs USING (run_id)
WHERE role = 'candidate'
GROUP BY ALL
ORDER BY created, run_id, op, implementation
"""
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
    rows = [_row(row) for row in query(archive, TRENDS, runs).to_pylist()]
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
        begins=rows[0]["date"],
        ends=rows[-1]["date"],
        invalid=sorted({row["run"] for row in rows if row["status"] == "invalid"}),
    )


def _row(trend: dict[str, Any]) -> dict[str, Any]:
    created = trend["created"]
    return {
        **trend,
        "run": trend["run_id"],
        "date": f"{created:%Y-%m-%d %H:%M}",
        "at": int(created.timestamp() * 1000),
        "gpu": trend["gpu"] or "no GPU",
        "versions": " ".join(
            f"{name} {trend[name]}" for name in ("torch", "triton") if trend[name]
        ),
        "commit": (trend["commit"] or "")[:12],
        "kernels_commit": (trend["kernels_commit"] or "")[:12],
        "role": "candidate",
        "status": "ok" if trend["controls_caught"] else "invalid",
    }


def _numbers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]
