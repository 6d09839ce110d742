"""A trial: the kernels of one file on a few shapes, judged and timed at once, without a run.

It answers who writes a kernel, in seconds. No control runs along and nothing is signed, so it
decides nothing; `nsabench all` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from nsabench import registry
from nsabench.assessment.caution import GREAT, all_general
from nsabench.assessment.checks.clocks import disturbances
from nsabench.assessment.results import Results, assemble
from nsabench.errors import EnvironmentRefused
from nsabench.execution import discovery
from nsabench.execution.protocol import Step
from nsabench.execution.supervisor.executor import GroupLost, WorkerExecutor
from nsabench.execution.supervisor.group import Group, find_culprit
from nsabench.machine import pressure
from nsabench.model.case import Case
from nsabench.model.description import Described
from nsabench.model.journal import Contents, Entry, Header
from nsabench.model.measurement import Ceilings
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.record import Record
from nsabench.model.vocabulary import NO_SPECIALISED, PassName, Role, Status
from nsabench.trial.known_baselines import SESSION, KnownBaselines
from nsabench.trial.question import UNTIMED, Question, plan

__all__ = ["Answer", "Question", "answer"]

_STATUSES = frozenset(status.value for status in Status)


@dataclass(frozen=True)
class Answer:
    """How one implementation of the file did on one case.

    baseline: the fastest that is right and computes the same; None where none was timed. known: it
    was measured earlier. log: what was printed while the case was measured, and the traceback of
    what was raised. general: all baselines that count are masks, gathers or FlexAttention.
    doubt: why its time, or that of the baseline, says nothing.
    """

    case: Case
    record: Record
    baseline: Record | None
    known: bool
    log: str
    general: bool = False
    doubt: str = ""

    @property
    def is_right(self) -> bool:
        return self.record.status is Status.OK

    @property
    def speedup(self) -> float | None:
        """Of medians on the device, without an interval; None where one of them is in doubt."""
        if self.baseline is None or not self.record.median_ms or not self.baseline.median_ms:
            return None
        if self.doubt:
            return None
        return self.baseline.median_ms / self.record.median_ms

    @property
    def caution(self) -> str:
        """What to bear in mind beside the speed-up, as the records of a run say it, or why there is
        none."""
        if self.doubt:
            return self.doubt
        return NO_SPECIALISED if self.general and (self.speedup or 0) > GREAT else ""


def answer(
    question: Question, on_found: Callable[[Step], None] = lambda step: None
) -> list[Answer]:
    """Measure what is asked, a case after another; what is installed in a process that never
    imports the file, so that its times are its own, and may be kept.

    on_found: told what became of an implementation of the file, a status by the name of the step,
    before any is timed.

    Raises `UsageError` for a file that cannot be imported or implements nothing that is asked, or
    for a bad shape.
    """
    sources = registry.sources(question.file, question.ops_file)
    clean = discovery.without(question.file, sources)

    def on_step(step: Step) -> None:
        if step.phase in _STATUSES:
            on_found(step)

    with (
        closing(_workers(question, None, clean)) as apart,
        closing(_workers(question, question.file, sources, on_step)) as own,
    ):
        infos = discovery.joined(question.file, sources, discovery.of(apart), discovery.of(own))
        try:
            described = apart.describe()
        except GroupLost as lost:
            raise EnvironmentRefused(
                f"the device could not be described: {lost.reason}", "run `nsabench doctor`."
            ) from None
        planned = plan(question, infos, sources)
        known = KnownBaselines(described, clean, fresh=question.fresh)
        return [a for case in planned.cases for a in _try(planned, case, own, apart, known)]


def _workers(
    question: Question,
    file: Path | None,
    sources: Mapping[str, str],
    on_step: Callable[[Step], None] = lambda step: None,
) -> WorkerExecutor:
    return WorkerExecutor(
        question.device,
        file,
        sources=sources,
        ops_file=question.ops_file,
        sandboxed=question.sandboxed,
        on_step=on_step,
    )


def _try(
    plan: Plan,
    planned: PlannedCase,
    own: WorkerExecutor,
    apart: WorkerExecutor,
    known: KnownBaselines,
) -> Iterator[Answer]:
    """own: imports the file. apart: does not, and measures what is installed."""
    infos = [plan.info(planned.case.op, name) for name in planned.implementations]
    cached = {i.name: o for i in infos if (o := known.outcome(planned.case, i)) is not None}
    installed = [i.name for i in infos if known.keeps(i) and i.name not in cached]
    beside = _undisturbed(plan, planned, own, apart, known, installed)
    # Samples of another process form no ratio with those of the file.
    outcomes = [o.model_copy(update={"session": SESSION}) for o in beside.outcomes]
    entry = _measured(plan, planned, own, [i.name for i in infos if not known.keeps(i)])
    entry = entry.model_copy(update={"outcomes": [*entry.outcomes, *cached.values(), *outcomes]})
    results = _assembled(plan, planned, entry, known.described)
    records = {record.implementation: record for record in results.records}
    timed = [
        record
        for i in infos
        if i.role is Role.BASELINE
        and planned.case.timing != UNTIMED
        and (record := records[i.name]).status is Status.OK
        and record.median_ms
    ]
    best = min(timed, key=lambda record: record.median_ms or 0, default=None)
    general = all_general([(record.kind, record.median_ms or 0.0) for record in timed])
    for info in infos:
        if info.role is Role.CANDIDATE:
            outcome = next(o for o in entry.outcomes if o.implementation == info.name)
            log = "\n".join(filter(None, (outcome.log.rstrip(), outcome.traceback)))
            is_known = best is not None and best.implementation in cached
            record = records[info.name]
            doubt = record.time_doubt or (best.time_doubt if best is not None else "")
            yield Answer(planned.case, record, best, is_known, log, general, doubt)


def _undisturbed(
    plan: Plan,
    planned: PlannedCase,
    own: WorkerExecutor,
    apart: WorkerExecutor,
    known: KnownBaselines,
    installed: Sequence[str],
) -> Entry:
    """Measure what is installed while nothing of the file runs; keep it if the machine was idle."""
    if installed:
        own.retire()
    was_busy = pressure.watch(apart.processes)
    beside = _measured(plan, planned, apart, installed)
    if not was_busy() and not any(disturbances(beside.conditions_that_count)):
        for outcome in beside.outcomes:
            info = plan.info(planned.case.op, outcome.implementation)
            known.keep(planned.case, info, outcome)
    return beside


def _measured(
    plan: Plan, planned: PlannedCase, executor: WorkerExecutor, names: Sequence[str]
) -> Entry:
    group = Group(plan, planned.case, names, executor, find_culprit)
    return group.measure(PassName.FIRST_LOOK)


def _assembled(plan: Plan, planned: PlannedCase, entry: Entry, described: Described) -> Results:
    alone = plan.model_copy(update={"cases": [planned]})
    header = Header(
        run_id=plan.run_id,
        plan_sha256=alone.sha256,
        environment_sha256="",
        started=plan.created,
        described=described,
        ceilings=Ceilings(),
    )
    return assemble(alone, Contents([header], [entry]))
