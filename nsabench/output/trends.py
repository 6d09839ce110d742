"""How the candidates of one archived run stand, in each regime: what its points in a trend show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

from nsabench.assessment.caution import beside, tally
from nsabench.assessment.statistics import geometric_mean
from nsabench.evidence.archive.archive import Archive, ArchivedRun
from nsabench.machine.environment.pairs import belongs
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Regime, Role, Status, Verdict


def rows(run: ArchivedRun, archive: Archive) -> Iterator[dict[str, Any]]:
    """A row an op, candidate and regime. Raises as `Archive.records`."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in archive.records(run):
        if record.role is Role.CANDIDATE:
            groups.setdefault((record.op, record.implementation), []).append(record)
    for (op, name), records in sorted(groups.items()):
        for regime in Regime:
            own = [r for r in records if regime in (r.regime, _also(r))]
            if own:
                yield {
                    **_of_the_run(run, own[0]),
                    "op": op,
                    "implementation": name,
                    **_standing(own, regime),
                }


def _also(record: Record) -> Regime | None:
    """The queue, where the case was called in it or should have been."""
    return Regime.QUEUE if record.queue_verdict is not None else None


def _of_the_run(run: ArchivedRun, first: Record) -> dict[str, Any]:
    predicate = run.statement.predicate
    e, created = predicate.environment, predicate.plan.created
    pair = {"torch": first.torch, "triton": first.triton}
    other = belongs(first.torch, first.triton)
    said = [f"{name} {version}" for name, version in pair.items() if version]
    return {
        "run": run.run_id,
        "date": f"{created:%Y-%m-%d %H:%M}",
        "at": int(created.timestamp() * 1000),
        "gpu": e.gpu or "no GPU",
        "versions": " ".join([*said, *(["(unpaired)"] if other else [])]),
        "combo": e.combo,
        "commit": e.commits.get("nsabench", "")[:12],
        "kernels_commit": e.commits.get("kernels", "")[:12],
        "nsabench": predicate.plan.nsabench,
        "trust": run.trust.value,
        "role": "candidate",
        "status": "ok" if predicate.controls_caught else "invalid",
    }


def _standing(records: Sequence[Record], regime: Regime) -> dict[str, Any]:
    """Means are of the cases that have a ratio; `cases_hash` tells whether two are of the same."""
    judged = [(r, r.judged_in(regime)) for r in records]
    compared = [(r, j[1]) for r, j in judged if j is not None and j[1] is not None]
    times = [time for r, _ in compared if (time := r.timed_in(regime)) is not None]
    ids = " ".join(sorted(r.case_id for r, _ in compared))
    return {
        "regime": regime.value,
        "cases": len(records),
        "ok": sum(r.status is Status.OK for r in records),
        "failed": sum(r.status not in BENIGN for r in records),
        "compared": len(compared),
        "faster": sum(j is not None and j[0] is Verdict.FASTER for _, j in judged),
        "speedup": geometric_mean(ratio for _, ratio in compared if ratio is not None),
        "time_ms": geometric_mean(times),
        "caution": tally(beside(r, regime) for r, _ in compared),
        "cases_hash": sha256(ids.encode()).hexdigest()[:16] if ids else "",
    }
