"""The results of a run that was merged of shards: each shard by itself, then all together.

A shard is judged by the ceilings and the controls of its own host. What the shards have in common
is the canary: the times of a host that is not as the others decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from nsabench.assessment import canary
from nsabench.assessment.canary import Canary
from nsabench.assessment.checks.finding import Effect, Finding
from nsabench.assessment.results import Results, assess
from nsabench.model.journal import Contents
from nsabench.model.plan import MergedShard, Plan


def assemble(plan: Plan, contents: Contents) -> Results:
    """The results of a merged run. Raises `UsageError` when the journal is not one of this plan."""
    canaries = {
        str(shard): canary.of_contents(contents.by_run.get(shard.run_id, Contents()))
        for shard in plan.shards
    }
    return together(of_shards(plan, contents, canary.outlying(canaries)))


def of_shards(
    plan: Plan, contents: Contents, outlying: Mapping[str, str]
) -> Iterator[tuple[MergedShard, Results]]:
    """The results of each shard. outlying: why its host is not as the others, by shard."""
    for shard, part in plan.parts():
        own = contents.by_run.get(shard.run_id, Contents())
        yield shard, of_shard(plan.run_id, shard, part, own, outlying.get(str(shard), ""))


def of_shard(
    run_id: str, shard: MergedShard, part: Plan, contents: Contents, outlying: str
) -> Results:
    """The results of one shard, as records of the merged run. part: its own part of the plan;
    run_id: of the merged run."""
    known = [canary.finding(f"{shard}: {outlying}")] if outlying else []
    results = replace(assess(part, contents, known), run_id=run_id).results(contents)
    return replace(
        results,
        findings=[told for f in results.findings for told in _told(f, shard, part)],
    )


def together(parts: Iterable[tuple[MergedShard, Results]]) -> Results:
    """The results of all shards as those of one run."""
    whole = Results([], {}, {}, [], {})
    for _, results in parts:
        whole.records.extend(results.records)
        whole.samples.update(results.samples)
        whole.bursts.update(results.bursts)
        whole.judgements.update(results.judgements)
        whole.findings.extend(results.findings)
    gravity = list(Effect)
    # Many shards say the same of a check that no control of theirs put to the proof.
    findings = sorted(dict.fromkeys(whole.findings), key=lambda f: gravity.index(f.effect))
    return replace(whole, findings=findings)


def _told(finding: Finding, shard: MergedShard, part: Plan) -> Iterator[Finding]:
    """What was found of a shard, said of the merged run: of its cases and not of all."""
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


__all__ = ["Canary", "assemble", "of_shard", "of_shards", "together"]
