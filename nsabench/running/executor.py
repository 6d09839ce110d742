"""Run jobs: a worker measures, and the checker judges what the worker delivers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from nsabench import limits, ops
from nsabench.channel import Step
from nsabench.checker.protocol import Prepared
from nsabench.delivery import Delivery
from nsabench.machine.environment import nvml
from nsabench.machine.environment.nvml import ConditionMonitor
from nsabench.model.case import FixedCount, Seed
from nsabench.model.job import Death, Job, input_seeds
from nsabench.model.measurement import Bursts, Judged, Message, Observation, Samples
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Purpose, Role, Status
from nsabench.running import process_tree
from nsabench.running.clients import CheckerClient, Listener, WorkerClient
from nsabench.running.process import WorkerLost, WorkerRefused, broke_protocol
from nsabench.verdicts.attempts import EARLY
from nsabench.worker.protocol import Measure, Measured

# The most bytes of an answer for each implementation; 10,000 samples take less. Observations become
# lines of the log, and readers refuse lines of over `LOG_LINE` bytes.
MOST_ANSWER_BYTES = limits.LOG_LINE // 16
_ELSEWHERE = {"observations": {"__all__": {"traceback"}}}  # tracebacks go to a file, not to the log
# The most outputs that a worker may deliver: outside of rounds; of one implementation in a round.
MOST_DELIVERIES, MOST_IN_A_ROUND = 100_000, 4


class Executor:
    def __init__(self, plan: Plan, worker: WorkerClient, checker: CheckerClient) -> None:
        self.worker = worker
        self._checker = checker
        self._plan = plan
        self._entropy = plan.entropy or token_hex(16)  # the secret that seeds are made from
        # By case id and implementation: the time of the first call, if `compilation.py` made it.
        self.compiled_s: Mapping[tuple[str, str], float] = {}
        # Candidates that were right in a case with probes, and the case's series.
        self._probed: set[tuple[Hashable, str]] = set()

    def run(self, job: Job) -> Measured | Death:
        """Measure a job, or return how its worker or checker died. Raises `WorkerRefused`."""
        self.worker.log.clear()
        try:
            return self._run(job)
        except WorkerLost as lost:
            self.worker.retire()
            return lost.death

    def _run(self, job: Job) -> Measured:
        seeds = input_seeds(self._entropy, job.purpose, job.case)
        infos = [self._plan.info(job.case.op, name) for name in job.implementations]
        computes = {info.name: info.computes for info in infos}
        # Probes (untimed calls on unusual inputs) do not depend on the length. A candidate that was
        # right on them needs no probes in other cases of the series, which differ only in length.
        series = ops.series_key(job.case)
        candidates = [info.name for info in infos if info.role is Role.CANDIDATE]
        probed = {(series, name) for name in candidates} - self._probed
        probes = job.purpose is Purpose.MAIN and bool(probed)
        prepared = self._checker.prepare(job.case, sorted({*computes.values()}), seeds, probes)
        measured = self._measure(job, prepared, seeds, computes)
        self._refuse_answer(measured, [*computes])
        # No control is diagnosed: its mistake is known, and a search would take too much time.
        judged = self._checker.conclude([i.name for i in infos if i.role is not Role.CONTROL])
        measured.observations = [
            with_judgement(observation, judged.get(observation.implementation))
            for observation in measured.observations
        ]
        if probes:
            right = {o.implementation for o in measured.observations if o.status is Status.OK}
            self._probed |= {key for key in probed if key[1] in right}
        for observation in measured.observations:
            if observation.compile_s is not None:  # a kernel compiled ahead is only loaded here
                ahead_s = self.compiled_s.get((job.case.id, observation.implementation), 0.0)
                observation.compile_s = max(observation.compile_s, ahead_s)
        self._end_children(measured.observations)
        return measured

    def _measure(
        self, job: Job, prepared: Prepared, seeds: list[Seed], computes: Mapping[str, str]
    ) -> Measured:
        request = Measure(
            case=job.case.model_copy(update={"seed": 0}),
            implementations=[*computes],
            prepared=prepared,
            seeds=seeds,
            early_exit=job.early_exit,
        )
        # At most 8 steps of each implementation besides its probes, and 8 of the case itself.
        max_steps = (8 + len(prepared.probes)) * len(computes) + 8
        sensors = nvml.Device.visible() if self.worker.device == "cuda" else None
        try:
            with ConditionMonitor(sensors) as monitor:
                listener = JobListener(self.worker.on_step, job, self._checker, computes, monitor)
                measured = self.worker.measure(request, max_steps, listener)
        except WorkerRefused as refused:
            if not self.worker.is_clean:
                raise
            # A clean worker imports only sources without candidates. If a source needs a
            # module of a source with candidates, only this job fails, not the run.
            raise WorkerLost(Death(status=Status.CRASHED, reason=str(refused))) from refused
        if sensors is not None:
            measured.conditions = monitor.summary(process_tree.list_own())
        return measured

    def _refuse_answer(self, measured: Measured, names: list[str]) -> None:
        size = len(measured.model_dump_json(exclude=_ELSEWHERE).encode())
        if size > min(len(names) * MOST_ANSWER_BYTES, limits.LOG_LINE // 2):
            how = f"answered with {size} bytes, more than the log has room for"
            raise WorkerLost(broke_protocol(how))
        if [observation.implementation for observation in measured.observations] != names:
            raise WorkerLost(broke_protocol("answered for other implementations than asked for"))

    def _end_children(self, observations: list[Observation]) -> None:
        count = self.worker.count_children()
        if not count:
            return
        self.worker.retire()
        # Any of the implementations may have started these processes.
        for observation in observations:
            note = "it, or one measured with it, left {} process(es) behind, which were killed"
            observation.notes.append(note.format(count))


@dataclass
class JobListener(Listener):
    job: Job
    checker: CheckerClient
    computes: Mapping[str, str]  # the op that each implementation computes
    monitor: ConditionMonitor

    def __post_init__(self) -> None:
        self._left = self._most = count_deliveries(self.job)
        self._step = Step(phase="start")

    def __call__(self, reply: Message) -> Message | None:
        if isinstance(reply, Delivery):
            self._left -= 1
            if self._left < 0:
                raise WorkerLost(broke_protocol(f"delivered more than {self._most} outputs"))
            if how := self._find_forgery(reply):
                raise WorkerLost(broke_protocol(how, self._step))
            return self.checker.check(reply)
        if isinstance(reply, Step):
            if reply.phase in EARLY and self._step.phase not in EARLY:
                # In an early phase, a death would be blamed on no implementation.
                raise WorkerLost(broke_protocol(f"went back to {reply.phase!r}", self._step))
            self._step = reply
            self.monitor.at_phase(reply.phase)
        return super().__call__(reply)

    def _find_forgery(self, delivery: Delivery) -> str:
        # In timed rounds the step names no implementation, so any could still deliver for another.
        name, computes = delivery.implementation, self.computes
        if name not in computes:
            return f"delivered an output of {name[:40]!r}, which is not measured here"
        if delivery.computes != computes[name]:
            return f"delivered an output of {name!r} for the op {delivery.computes[:40]!r}"
        called = self._step.implementation
        if called not in ("", name):
            return f"delivered an output of {name!r} while {called[:40]!r} was called"
        return ""


def count_deliveries(job: Job) -> int:
    stopping = job.case.timing.stopping
    rounds = stopping.rounds if isinstance(stopping, FixedCount) else stopping.max_rounds
    return MOST_DELIVERIES + MOST_IN_A_ROUND * rounds * len(job.implementations)


def with_judgement(observation: Observation, judged: Judged | None) -> Observation:
    if judged is None:
        if observation.status is not Status.OK:
            return observation
        reason = "its process calls it right, but delivered no output to be checked"
        update: dict[str, Any] = {"status": Status.CRASHED, "reason": reason}
    else:
        update = judged.model_dump(exclude={"status", "reason"})
        if judged.reason and observation.status in (Status.OK, Status.WRONG):
            update |= {"status": judged.status, "reason": judged.reason}
    if update.get("status", Status.OK) is not Status.OK:
        update |= {"samples": Samples(), "bursts": Bursts()}
    return observation.model_copy(update=update)
