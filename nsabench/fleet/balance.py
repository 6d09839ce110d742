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
from nsabench.model.source import Source
from nsabench.model.vocabulary import PassName, Role, Status
from nsabench.planning.cost import Costs, OpDirection, by_work, op_direction

# Passes over the cases of a plan; the others measure its canary, which every shard has.
OF_CASES = (PassName.FIRST_LOOK, PassName.SECOND_LOOK, PassName.ISOLATED_BASELINES)
LONGEST_S = 1e8  # three years
FEWEST = 3  # other cases, to say that the first of them took longer

# A pass of one run over the cases of an op and direction, in processes that import the same.
Process = tuple[str, PassName, Source, OpDirection]
Measured = list[tuple[str, float]]  # cases by their id, in order, and seconds of each


@dataclass(frozen=True)
class Balance:
    """run_ids: of the earlier runs, with commas; none where there was none. seconds: that their
    passes took for each case, by id, without controls; controls: seconds of those, by run;
    measured: what processes took for their cases, without controls."""

    run_ids: str
    seconds: dict[str, float]
    controls: dict[tuple[str, OpDirection], float] = field(default_factory=dict)
    measured: dict[Process, Measured] = field(default_factory=dict)

    def costs(self, cases: list[PlannedCase]) -> Costs:
        """What each case costs, and what an op and direction take to begin, as far as the runs
        show it: controls, and what their first case took besides. A case that no run had is
        estimated by its work, in proportion to those that they had."""
        estimated = by_work(cases).seconds
        known = [c.id for c in cases if c.id in self.seconds]
        ratio = median(self.seconds[i] / estimated[i] for i in known) if known else 1.0
        seconds = {i: self.seconds.get(i, estimated[i] * ratio) for i in estimated}
        of_runs = defaultdict(float, self.controls)
        for (run_id, _, _, begun), measured in self.measured.items():
            first, _ = measured[0]
            if longer := _longer(measured, estimated):
                of_runs[run_id, begun] += longer
                seconds[first] = max(0.0, seconds[first] - longer)
        beginnings: dict[OpDirection, float] = defaultdict(float)
        for (_, begun), taken in of_runs.items():
            beginnings[begun] = max(beginnings[begun], taken)
        return Costs(seconds, {begun: taken for begun, taken in beginnings.items() if taken > 0})


def of_runs(paths: Sequence[Path]) -> Balance:
    """What the runs took; of a case that several have, what the last of them took. Raises as
    `of_run` does."""
    runs = [of_run(path) for path in paths]
    return Balance(
        ", ".join(one.run_ids for one in runs),
        {case_id: s for one in runs for case_id, s in one.seconds.items()},
        {begun: s for one in runs for begun, s in one.controls.items()},
        {process: those for one in runs for process, those in one.measured.items()},
    )


def of_run(path: Path) -> Balance:
    """What a run took. Raises `UsageError` when there is none, and `VerificationFailed` when it was
    altered: hosts that read another file would make other shards."""
    folder = RunFolder.existing(path)
    refuse_altered(path)
    plan = Plan.read(folder.plan)
    cases = {planned.id: planned.case for planned in plan.cases}
    controls = {(i.op, i.name) for i in plan.implementations if i.role is Role.CONTROL}
    seconds: dict[str, float] = defaultdict(float)
    of_controls: dict[tuple[str, OpDirection], float] = defaultdict(float)
    measured: dict[Process, Measured] = defaultdict(list)
    contents = journal.read(folder.journal)
    # A merged run is of several, each of which had controls and first cases of its own.
    for run_id, own in (contents.by_run or {plan.run_id: contents}).items():
        for entry in own.entries:
            if entry.pass_name not in OF_CASES or entry.case_id not in cases:
                continue
            if not 0 <= entry.wall_s < LONGEST_S:
                raise UsageError(
                    f"{path} says that a case took {entry.wall_s:g} s",
                    "give --balance another run.",
                )
            begun = op_direction(cases[entry.case_id])
            theirs = entry.wall_s * _share(entry, begun[0], controls)
            of_controls[run_id, begun] += theirs
            seconds[entry.case_id] += entry.wall_s - theirs
            if not entry.reason:  # a case that hung says nothing of how long one takes
                process = run_id, entry.pass_name, begun
                measured[process].append((entry.case_id, entry.wall_s - theirs))
    if not seconds:
        raise UsageError(f"{path} has measured nothing", "give --balance a finished run.")
    return Balance(plan.run_id, dict(seconds), dict(of_controls), dict(measured))


def _share(entry: Entry, op: str, controls: set[tuple[str, str]]) -> float:
    """How many of what was measured of a case are controls, and so about what share of its time is
    theirs: one that is declined takes none."""
    names = [o.implementation for o in entry.outcomes if o.status is not Status.UNSUPPORTED]
    return sum((op, name) in controls for name in names) / max(len(names), 1)


def _longer(measured: Measured, estimated: Mapping[str, float]) -> float:
    """How much longer the first case took in a process than is in proportion to the others: what it
    needs is imported and traced for it. Seconds; 0 where too few are known."""
    (first, took), *others = measured
    known = [own / estimated[case_id] for case_id, own in others if case_id in estimated]
    if first not in estimated or len(known) < FEWEST:
        return 0.0
    return max(0.0, took - median(known) * estimated[first])
