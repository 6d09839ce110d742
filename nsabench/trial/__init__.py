"""A trial: the kernels of one file on a few shapes, judged and timed at once, without a run.

It answers who writes a kernel, in seconds. No control runs along and nothing is signed, so it
decides nothing; `nsabench all` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from nsabench import registry
from nsabench.assessment.caution import GREAT, NO_SPECIALISED
from nsabench.assessment.results import assemble
from nsabench.errors import UsageError
from nsabench.execution.protocol import Step
from nsabench.execution.supervisor.executor import GroupLost, WorkerExecutor
from nsabench.execution.supervisor.group import Group, find_culprit
from nsabench.model.case import Case
from nsabench.model.description import Described
from nsabench.model.journal import Contents, Entry, Header
from nsabench.model.measurement import Ceilings
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.record import Record
from nsabench.model.vocabulary import Kind, PassName, Role, Status
from nsabench.trial.known_baselines import KnownBaselines
from nsabench.trial.question import Question, plan

__all__ = ["Answer", "Question", "answer"]


@dataclass(frozen=True)
class Answer:
    """How one implementation of the file did on one case.

    baseline: the fastest that is right and computes the same; None where none was timed. known: it
    was measured earlier. log: what was printed while the case was measured, and the traceback of
    what was raised. general: all baselines that were timed are masks, gathers or FlexAttention.
    """

    case: Case
    record: Record
    baseline: Record | None
    known: bool
    log: str
    general: bool = False

    @property
    def is_right(self) -> bool:
        return self.record.status is Status.OK

    @property
    def speedup(self) -> float | None:
        """Of medians on the device, without an interval."""
        if self.baseline is None or not self.record.median_ms or not self.baseline.median_ms:
            return None
        return self.baseline.median_ms / self.record.median_ms

    @property
    def caution(self) -> str:
        """What to bear in mind beside the speed-up, as the records of a run say it."""
        return NO_SPECIALISED if self.general and (self.speedup or 0) > GREAT else ""


def answer(question: Question, on_step: Callable[[Step], None] = lambda step: None) -> list[Answer]:
    """Measure what is asked, a case after another.

    Raises `UsageError` for a file that cannot be imported or implements nothing that is asked, or
    for a bad shape.
    """
    sources = registry.sources(question.file, question.ops_file)
    worker = WorkerExecutor(
        question.device,
        question.file,
        sources=sources,
        ops_file=question.ops_file,
        sandboxed=question.sandboxed,
        on_step=on_step,
    )
    with closing(worker) as executor:
        try:
            infos = executor.discover()
            described = executor.describe()
        except GroupLost as lost:
            raise UsageError(
                f"{question.file} could not be imported: {lost.reason}",
                "import it in a Python of its own to see why.",
            ) from None
        planned = plan(question, infos, sources)
        executor.infos = {(info.op, info.name): info for info in infos}
        known = KnownBaselines(described, sources, fresh=question.fresh)
        return [a for case in planned.cases for a in _try(planned, case, executor, known)]


def _try(
    plan: Plan, planned: PlannedCase, executor: WorkerExecutor, known: KnownBaselines
) -> Iterator[Answer]:
    infos = [plan.info(planned.case.op, name) for name in planned.implementations]
    cached = {i.name: o for i in infos if (o := known.outcome(planned.case, i)) is not None}
    names = [i.name for i in infos if i.name not in cached]
    entry = Group(plan, planned.case, names, executor, find_culprit).measure(PassName.FIRST_LOOK)
    for outcome in entry.outcomes:
        known.keep(planned.case, plan.info(planned.case.op, outcome.implementation), outcome)
    entry = entry.model_copy(update={"outcomes": [*entry.outcomes, *cached.values()]})
    records = {r.implementation: r for r in _records(plan, planned, entry, known.described)}
    timed = [
        record
        for i in infos
        if i.role is Role.BASELINE
        and (record := records[i.name]).status is Status.OK
        and record.median_ms
    ]
    best = min(timed, key=lambda record: record.median_ms or 0, default=None)
    general = {record.kind for record in timed} == {Kind.GENERAL}
    for info in infos:
        if info.role is Role.CANDIDATE:
            outcome = next(o for o in entry.outcomes if o.implementation == info.name)
            log = "\n".join(filter(None, (outcome.log.rstrip(), outcome.traceback)))
            is_known = best is not None and best.implementation in cached
            yield Answer(planned.case, records[info.name], best, is_known, log, general)


def _records(
    plan: Plan, planned: PlannedCase, entry: Entry, described: Described
) -> Sequence[Record]:
    alone = plan.model_copy(update={"cases": [planned]})
    header = Header(
        run_id=plan.run_id, started=plan.created, described=described, ceilings=Ceilings()
    )
    return assemble(alone, Contents([header], [entry])).records
