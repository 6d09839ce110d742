"""What the cases of a plan cost, as an earlier run took for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from nsabench.errors import UsageError
from nsabench.evidence.manifest import refuse_altered
from nsabench.execution import journal
from nsabench.execution.folder import RunFolder
from nsabench.model.journal import Entry
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.vocabulary import PassName, Role
from nsabench.planning.cost import Costs, Kind, by_work, kind_of

# Passes over the cases of a plan; the others measure its canary, which every shard has.
OF_CASES = (PassName.FIRST_LOOK, PassName.SECOND_LOOK, PassName.ISOLATED_BASELINES)
FEW = 3  # cases of a kind: of fewer nobody can say that the first of them took longer


@dataclass(frozen=True)
class Balance:
    """run_ids: of the earlier runs, with commas; none where there was none. seconds: that their
    passes took for each case, by id, without those of its kind's beginning; beginnings: that a
    shard takes for each kind besides, its controls among them."""

    run_ids: str
    seconds: dict[str, float]
    beginnings: dict[Kind, float] = field(default_factory=dict)

    def costs(self, cases: list[PlannedCase]) -> Costs:
        """What each case costs; one that no run had is estimated by its work, in proportion to
        those that they had."""
        estimated = by_work(cases).seconds
        known = [c.id for c in cases if c.id in self.seconds]
        ratio = median(self.seconds[i] / estimated[i] for i in known) if known else 1.0
        seconds = {i: self.seconds.get(i, estimated[i] * ratio) for i in estimated}
        return Costs(seconds, self.beginnings)


def of_runs(paths: Sequence[Path]) -> Balance:
    """What the runs took; of what several have, what the last of them took. Raises as `of_run`
    does."""
    runs = [of_run(path) for path in paths]
    return Balance(
        ", ".join(one.run_ids for one in runs),
        {case_id: s for one in runs for case_id, s in one.seconds.items()},
        {kind: s for one in runs for kind, s in one.beginnings.items()},
    )


def of_run(path: Path) -> Balance:
    """What a run took. Raises `UsageError` when there is none, and `VerificationFailed` when it was
    altered: hosts that read another file would make other shards."""
    folder = RunFolder.existing(path)
    refuse_altered(path)
    plan = Plan.read(folder.plan)
    cases = {planned.id: planned for planned in plan.cases}
    entries = [
        entry
        for entry in journal.read(folder.journal).entries
        if entry.pass_name in OF_CASES and entry.case_id in cases
    ]
    if not entries:
        raise UsageError(f"{path} has measured nothing", "give --balance a finished run.")
    controls = {(i.op, i.name) for i in plan.implementations if i.role is Role.CONTROL}
    seconds: dict[str, float] = defaultdict(float)
    beginnings: dict[Kind, float] = defaultdict(float)
    taken: dict[tuple[PassName, Kind], list[tuple[str, float]]] = defaultdict(list)
    for entry in entries:
        kind = kind_of(cases[entry.case_id].case)
        of_controls = entry.wall_s * _share(entry, kind[0], controls)
        beginnings[kind] += of_controls
        taken[entry.pass_name, kind].append((entry.case_id, entry.wall_s - of_controls))
    estimated = by_work(plan.cases).seconds
    for (_, kind), measured in taken.items():
        first, _ = measured[0]
        longer = _longer(measured, estimated)
        beginnings[kind] += longer
        for case_id, own in measured:
            seconds[case_id] += own
        seconds[first] -= longer
    return Balance(plan.run_id, dict(seconds), dict(beginnings))


def _share(entry: Entry, op: str, controls: set[tuple[str, str]]) -> float:
    """How many of what a case was measured with are controls: they take about as long."""
    names = [outcome.implementation for outcome in entry.outcomes]
    return sum((op, name) in controls for name in names) / max(len(names), 1)


def _longer(measured: Sequence[tuple[str, float]], estimated: Mapping[str, float]) -> float:
    """How much longer the first case of a kind took in a pass than is in proportion to the others:
    what it needs is imported and traced for it. Seconds."""
    (first, took), *others = measured
    if len(others) < FEW:
        return 0.0
    ratio = median(own / estimated[case_id] for case_id, own in others)
    return max(0.0, took - ratio * estimated[first])
