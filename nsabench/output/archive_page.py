"""The page of an archive: how candidates went over dates and versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from nsabench.assessment.caution import beside, tally
from nsabench.assessment.statistics import geometric_mean
from nsabench.errors import UsageError
from nsabench.evidence.archive.archive import Archive, ArchivedRun
from nsabench.machine.environment.pairs import belongs
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Regime, Status, Verdict
from nsabench.output.report import html
from nsabench.output.report.files import replace
from nsabench.output.standing import standings


def write(archive: Archive, path: Path, runs: Sequence[ArchivedRun] | None = None) -> Path:
    """Write the page of the runs of a survey, or of all sound runs. Raises `UsageError` without a
    candidate, and `EnvironmentRefused` if the extra `report` is not installed."""
    return replace(path, render(archive, runs))


def render(archive: Archive, runs: Sequence[ArchivedRun] | None = None) -> str:
    runs = archive.runs() if runs is None else runs
    location = archive.store.location
    if not runs:
        raise UsageError(f"{location} holds no runs", "add one: archive add RUN.")
    by_date = sorted(runs, key=lambda run: (run.statement.predicate.plan.created, run.run_id))
    points = [point for run in by_date for point in rows(run, archive)]
    if not points:
        raise UsageError(f"no run in {location} has a candidate", "add one: archive add RUN.")
    versions = {point["versions"] for point in points}
    in_order = sorted(versions, key=lambda text: [int(n) for n in re.findall(r"\d+", text)])
    return html.render(
        "archive.html.j2",
        ("archive.js",),
        {**html.rows(points), "versions": in_order},
        location=location,
        runs=len({point["run"] for point in points}),
        gpus=sorted({point["gpu"] for point in points}),
        versions=in_order,
        candidates=len({(point["op"], point["implementation"]) for point in points}),
        cautions=any(point["caution"] for point in points),
        begins=points[0]["date"],
        ends=points[-1]["date"],
        invalid=sorted({point["run"] for point in points if point["status"] == "invalid"}),
    )


def rows(run: ArchivedRun, archive: Archive) -> Iterator[dict[str, Any]]:
    """Yield a point of a trend for each op, candidate and regime. Raises as `Archive.records`."""
    for standing in standings(archive.records(run)):
        for regime in Regime:
            # The cases that were called in the regime, or should have been.
            own = [r for r in standing.records if regime is r.regime or r.judged_in(regime)]
            if own:
                yield {
                    **_of_the_run(run, own[0]),
                    "op": standing.op,
                    "implementation": standing.implementation,
                    **_in_regime(own, regime),
                }


def _of_the_run(run: ArchivedRun, first: Record) -> dict[str, Any]:
    predicate = run.statement.predicate
    e, created = predicate.environment, predicate.plan.created
    pair = {"torch": first.torch, "triton": first.triton}
    said = [f"{name} {version}" for name, version in pair.items() if version]
    said += ["(unpaired)"] if belongs(first.torch, first.triton) else []
    return {
        "run": run.run_id,
        "date": f"{created:%Y-%m-%d %H:%M}",
        "at": int(created.timestamp() * 1000),
        "gpu": e.gpu or "no GPU",
        "versions": " ".join(said),
        "combo": e.combo,
        "commit": e.commits.get("nsabench", "")[:12],
        "kernels_commit": e.commits.get("kernels", "")[:12],
        "nsabench": predicate.plan.nsabench,
        "trust": run.trust.value,
        "role": "candidate",
        "status": "ok" if predicate.controls_caught else "invalid",
    }


def _in_regime(records: Sequence[Record], regime: Regime) -> dict[str, Any]:
    """Means are of the cases that have a ratio. `cases_hash` tells whether two are of the same."""
    judged = [(r, *found) for r in records if (found := r.judged_in(regime))]
    compared = [(r, ratio) for r, _, ratio in judged if ratio is not None]
    times = [time for r, _ in compared if (time := r.timed_in(regime)) is not None]
    ids = " ".join(sorted(r.case_id for r, _ in compared))
    return {
        "regime": regime.value,
        "cases": len(records),
        "ok": sum(r.status is Status.OK for r in records),
        "failed": sum(r.status not in BENIGN for r in records),
        "compared": len(compared),
        "faster": sum(verdict is Verdict.FASTER for _, verdict, _ in judged),
        "speedup": geometric_mean(ratio for _, ratio in compared),
        "time_ms": geometric_mean(times),
        "caution": tally(beside(r, regime) for r, _ in compared),
        "cases_hash": sha256(ids.encode()).hexdigest()[:16] if ids else "",
    }
