"""Read the evidence for a threshold: the cases of each candidate, from runs or CSV tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nsabench import labels, ops
from nsabench.checks import HARMLESS, Finding, proofs
from nsabench.checks.best_baseline import best_baseline
from nsabench.checks.series import by_case
from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.source import Source
from nsabench.model.vocabulary import MARGIN, Direction, Regime, Role, Status, Verdict
from nsabench.planning.narrow import ALL, Narrowed
from nsabench.verdicts import audit
from nsabench.verdicts.audit import table
from nsabench.verdicts.objections import Objections, joined, objections
from nsabench.verdicts.series import Tested
from nsabench.verdicts.tables import read_records


@dataclass(frozen=True)
class Evidence:
    """All that was tested on one machine, and the objections to deciding from it.

    caveats: unproven checks behind the verdicts, by op. margin: the run confirmed verdicts at it.
    records: timed candidates and baselines, for checks along a length. where: conditions that all
    cases meet. notes: findings that prevent nothing.
    """

    tested: list[Tested]
    against: Objections = field(default_factory=dict)
    caveats: Mapping[str, list[str]] = field(default_factory=dict)
    margin: float | None = None
    records: list[Record] = field(default_factory=list)
    where: tuple[str, ...] = ()
    notes: Mapping[str, list[Finding]] = field(default_factory=dict)  # by op


def of_run(folder: Path, narrowed: Narrowed = ALL) -> Evidence:
    """Return the evidence of the chosen cases of a run.

    Raises `UsageError` if the plan or the records cannot be read, if the installed op is another
    one, or if no case is chosen.
    """
    plan = Plan.read(folder / "plan.json")
    evidence = of_records(records_of(folder, narrowed), plan)
    return replace(evidence, where=(*plan.where, *narrowed.where))


def records_of(folder: Path, narrowed: Narrowed = ALL) -> list[Record]:
    """Return the records of the chosen cases of a run. Raises `UsageError` like `of_run`."""
    records, plan = read_records(folder), Plan.read(folder / "plan.json")
    ops.refuse_other(plan)
    narrowed.refuse_unmet([planned.case for planned in plan.cases])
    wanted = {planned.id for planned in plan.cases if narrowed.wants(planned.case)}
    return [r for r in records if r.case_id in wanted]


def of_records(records: Sequence[Record], plan: Plan | None = None) -> Evidence:
    """Return the evidence of one run, without backward cases: a threshold switches a forward on.
    Each shard of a merged run has its own controls."""
    if plan is not None and plan.shards:
        own: dict[int, list[Record]] = {}
        for record in records:
            own.setdefault(plan.by_id[record.case_id].shard, []).append(record)
        alone = plan.model_copy(update={"shards": ()})
        return together([of_records(own[number], alone) for number in sorted(own)])
    records = [r for r in records if r.direction is Direction.FORWARD]
    if plan is not None:
        records = [_with_plan(r, plan) for r in records]
    candidates = [r for r in records if r.role is Role.CANDIDATE]
    queues = any(r.compared(Regime.QUEUE) for r in candidates)
    margin = plan.margin if plan else MARGIN
    lacking = proofs.unproven(records)
    return Evidence(
        [
            Tested(r, r.comparison(regime), labels.named(r), margin, _is_own(r, plan))
            for r in candidates
            for regime in ((r.regime, Regime.QUEUE) if queues else (r.regime,))
            if r.may_be_judged_in(regime)
        ],
        objections(records),
        {
            op: [s for _, s in proofs.by_way([lack for lack in lacking if lack.group.op == op])]
            for op in sorted({r.op for r in candidates})
        },
        margin,
        [r for r in records if r.role is not Role.CONTROL and r.median_ms],
        plan.where if plan else (),
    )


def _with_plan(record: Record, plan: Plan) -> Record:
    info, planned = plan.by_name.get((record.op, record.implementation)), plan.by_id[record.case_id]
    source = info.source if info else Source()
    digest = plan.sources.get(source)
    if digest and not source.is_file:
        source = Source.of_digest(Path(source), digest)
    alongside = record.implementation in planned.alongside
    return replace(record, source=source, alongside=alongside)


def _is_own(record: Record, plan: Plan | None) -> bool:
    info = plan.by_name.get((record.op, record.implementation)) if plan else None
    return info is not None and info.source.is_file


def together(parts: Sequence[Evidence]) -> Evidence:
    """Join the evidence of the shards of a plan. All cases of a length series are in one shard."""
    caveats = joined({(op, None): s for op, s in part.caveats.items()} for part in parts)
    return replace(
        parts[0],
        tested=[tested for part in parts for tested in part.tested],
        against=joined(part.against for part in parts),
        caveats={op: sentences for (op, _), sentences in caveats.items()},
        records=[record for part in parts for record in part.records],
    )


def of_tables(paths: Sequence[Path], gpu: str) -> Evidence:
    """Return the evidence of CSV tables from elsewhere: ratios of medians, without an interval.
    Findings of the audit that are graver than a note are objections.

    Raises `UsageError` for a file without timings and for an unknown device.
    """
    tested, against = [], []
    names = Counter(path.name for path in paths)
    for path in paths:
        name = path.name if names[path.name] == 1 else str(path)
        for finding in audit.audit_csv(path, gpu):
            if finding.effect not in HARMLESS:
                where = f"{finding.case_id}: " if finding.case_id else ""
                against.append(f"{name}: {finding.check}: {where}{finding.sentence}")
        records = [r for r in table.read(path).records() if r.direction is Direction.FORWARD]
        cases = by_case(records)
        for record in (r for r in records if r.role is Role.CANDIDATE):
            best, own_ms = best_baseline(cases[record.case_id]), record.median_ms
            ratio = best.median_ms / own_ms if best and best.median_ms and own_ms else None
            verdict = Verdict.FASTER if ratio and ratio > 1 else Verdict.SLOWER
            comparison = replace(record.comparison(Regime.DEVICE), verdict=verdict, lo=ratio)
            status = record.status if own_ms else Status.SKIPPED
            record = replace(record, gpu_name=gpu, run_id=name, status=status)
            tested.append(Tested(record, comparison, record.case_id))
    return Evidence(tested, {("", None): against})
