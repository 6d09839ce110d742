"""Assemble the results of a run. Each shard of a merged run is judged on its own first.

A shard has the ceilings and controls of its own host. The canary compares the hosts: if a host is
not like the others, its times decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nsabench.checks.finding import Effect, Finding
from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.verdicts import canary
from nsabench.verdicts.results import Part, Results, assess


def assemble(run_id: str, parts: Sequence[Part]) -> Results:
    """Apply the checks to a run and judge its candidates. run_id: of the whole run."""
    if len(parts) == 1 and parts[0].plan.run_id == run_id:
        return assess(parts[0].plan, parts[0].log).results(parts[0].log)
    canaries = {name_of(part.plan): canary.canary_of(part.plan, part.log) for part in parts}
    why = canary.outlying(canaries)
    records: list[Record] = []
    findings: dict[Finding, None] = {}
    for part in parts:
        results = _assess_shard(run_id, part, why.get(name_of(part.plan), ""))
        records += results.records
        # Many shards have the same findings about checks that no control proved.
        findings |= dict.fromkeys(results.findings)
    gravity = list(Effect)
    return Results(records, sorted(findings, key=lambda f: gravity.index(f.effect)))


def name_of(plan: Plan) -> str:
    return f"shard {plan.shard} (run {plan.run_id})"


def _assess_shard(run_id: str, part: Part, outlying: str) -> Results:
    """Return the results of a shard, as records of the merged run."""
    name = name_of(part.plan)
    objections = [canary.finding(f"{name}: {outlying}")] if outlying else []
    results = assess(part.plan, part.log, objections).results(part.log)
    records = [_with_run_id(record, run_id) for record in results.records]
    findings = [g for f in results.findings for g in _name_shard(f, name, part.plan)]
    return Results(records, findings)


def _with_run_id(record: Record, run_id: str) -> Record:
    comparisons = tuple(replace(c, run_id=run_id) for c in record.comparisons)
    return replace(record, run_id=run_id, comparisons=comparisons)


def _name_shard(finding: Finding, shard: str, part: Plan) -> Iterator[Finding]:
    if finding.case_id or finding.effect in (Effect.UNPROVEN, Effect.NOTE):
        yield finding
    elif finding.check == canary.CHECK:
        yield finding  # its sentence names the shard
    elif finding.groups:
        yield replace(finding, sentence=f"{shard}: {finding.sentence}")
    else:
        sentence = f"{shard}: {finding.sentence}"
        for planned in part.cases:
            yield replace(finding, sentence=sentence, case_id=planned.id)
