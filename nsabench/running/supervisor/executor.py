"""Run jobs in a warm worker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any, TypeVar

from nsabench import limits, ops
from nsabench.checker.messages import Checked, Judged
from nsabench.delivery import Delivery
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.machine.environment import nvml
from nsabench.model.case import Case, FixedCount
from nsabench.model.description import Described
from nsabench.model.job import Death, Job, input_seeds
from nsabench.model.measurement import Bursts, Ceilings, Message, Observation, Samples
from nsabench.model.plan import Device, ImplementationInfo, Plan
from nsabench.model.source import Source
from nsabench.model.vocabulary import Purpose, Role, Status
from nsabench.running.supervisor import process
from nsabench.running.supervisor.checker import CheckerProcess
from nsabench.running.supervisor.death import (
    CheckerLost,
    WorkerLost,
    WorkerRefused,
    broke_protocol,
)
from nsabench.running.supervisor.process import WarmWorker
from nsabench.running.supervisor.program import Program, measuring
from nsabench.running.supervisor.scratch import Scratch
from nsabench.running.supervisor.timeouts import MAX_STEPS
from nsabench.verdicts.blame import BEFORE_ANY
from nsabench.worker.conditions import ConditionMonitor
from nsabench.worker.protocol import (
    Calibrate,
    Calibrated,
    Compile,
    Compiled,
    Describe,
    Discover,
    Discovered,
    LostDevice,
    Measure,
    Measured,
    Step,
)

START_LIMIT_S = 120.0  # to import everything, or to calibrate
# For each implementation; 10,000 samples take less. A longer line of the log is refused.
MOST_ANSWER_BYTES = limits.LOG_LINE // 16
MOST_PROBES = 64  # of an op, that are called ahead
_ELSEWHERE = {"observations": {"__all__": {"traceback"}}}  # a file holds them
# The checker's work is bounded. An honest worker delivers less: outside of rounds, and in a round
# for one implementation.
MOST_DELIVERIES, MOST_IN_A_ROUND = 100_000, 4

M = TypeVar("M", bound=Message)


@dataclass
class WorkerExecutor:
    """Runs jobs in a worker, one at a time.

    computes: the op that an alternative computes, by op and name. candidates: by op and name; they
    are called on probes. entropy: the secret from which input seeds are made. is_clean: whether the
    worker imports no candidate.
    """

    device: Device
    kernels: Path | None = None
    _: KW_ONLY
    sources: Mapping[str, str] | None = None
    ops_file: Path | None = None
    run_folder: Path | None = None
    sandboxed: bool = True
    computes: Mapping[tuple[str, str], str] = field(default_factory=dict)
    candidates: Collection[tuple[str, str]] = ()
    entropy: str = ""
    is_clean: bool = False
    checker: CheckerProcess | None = None
    on_step: Callable[[Step], None] = lambda step: None

    def __post_init__(self) -> None:
        self.entropy = self.entropy or token_hex(16)
        self._scratch: Scratch | None = None
        self._scratch_is_lent = False
        self._compiled_s: Mapping[tuple[str, str], float] = {}
        self._probed: set[tuple[Hashable, str]] = set()  # right on probes, by series and name
        self._worker = WarmWorker(self._make_program)
        self._checker = self.checker or CheckerProcess(self.device, self.ops_file)

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        run: Path,
        sources: Iterable[str] | None = None,
        checker: CheckerProcess | None = None,
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> WorkerExecutor:
        """Make workers that import sources of a plan, all by default, and refuse changed ones."""
        imported = dict(plan.sources)
        if sources is not None:
            imported = {source: plan.sources[source] for source in sources}
        kernels = Path(plan.kernels) if plan.kernels else None
        if kernels is not None:
            # By its digest, since the file of the op may have the same name.
            own = Source.of_digest(kernels, plan.kernels_sha256)
            kernels = kernels if own in imported else None
        return cls(
            plan.device,
            kernels,
            sources=imported,
            ops_file=Path(plan.ops) if plan.ops else None,
            run_folder=run,
            sandboxed=plan.sandboxed,
            computes={(i.op, i.name): i.computes for i in plan.implementations if i.computes},
            candidates=_find_candidates(plan.implementations),
            entropy=plan.entropy,
            is_clean=imported.keys() <= plan.clean_sources.keys() < plan.sources.keys(),
            checker=checker,
            on_step=on_step,
        )

    def imports(self, sources: Iterable[str]) -> bool:
        return set(sources) == set(self.sources or ())

    def _ask(
        self,
        request: Message,
        expected: type[M],
        limit_s: float,
        max_steps: int = MAX_STEPS,
        max_deliveries: int = 0,
        computes: Mapping[str, str] = MappingProxyType({}),
        at_step: Callable[[Step], None] = lambda step: None,
    ) -> M:
        deliveries, suspect, step = 0, "", Step(phase="start")

        def take(reply: Message) -> Checked | None:
            nonlocal deliveries, suspect, step
            if isinstance(reply, Step):
                step = reply
                at_step(reply)
                self.on_step(reply)
            elif isinstance(reply, Delivery):
                deliveries, suspect = deliveries + 1, reply.implementation
                if deliveries > max_deliveries:
                    raise WorkerLost(
                        broke_protocol(f"delivered more than {max_deliveries} outputs")
                    )
                if how := find_forgery(reply, step, computes):
                    raise WorkerLost(broke_protocol(how, step))
                return self._checker.check(reply)
            elif isinstance(reply, LostDevice):
                death = Death(
                    status=Status.CRASHED, reason=reply.reason, suspect=reply.implementation
                )
                raise WorkerLost(death)
            return None

        try:
            return self._worker.ask(request, expected, limit_s, max_steps, take)
        except CheckerLost as lost:
            raise _without_checker(lost, "delivery", suspect) from lost

    def _make_program(self) -> Program:
        sandbox = self.scratch.next_sandbox() if self.sandboxed else None
        return measuring(
            self.device, self.kernels, self.sources, self.ops_file, sandbox, self._checker.mailbox
        )

    def discover(self) -> list[ImplementationInfo]:
        """Return all implementations. Raises `UsageError` if they cannot be imported."""
        try:
            infos = self._ask(Discover(), Discovered, START_LIMIT_S).implementations
        except WorkerLost as lost:
            raise UsageError(
                f"{self.kernels or 'the implementations'} could not be imported: {lost.reason}",
                "import it in a Python of its own to see why.",
            ) from lost
        self.candidates = _find_candidates(infos)
        return infos

    def describe(self) -> Described:
        return self._ask_device(Describe(), Described, "described")

    def calibrate(self) -> Ceilings:
        return self._ask_device(Calibrate(), Calibrated, "calibrated").ceilings

    def _ask_device(self, request: Message, expected: type[M], done: str) -> M:
        """Raises `EnvironmentRefused`."""
        try:
            return self._ask(request, expected, START_LIMIT_S)
        except WorkerLost as lost:
            raise EnvironmentRefused(
                f"the device could not be {done}: {lost.reason}", "run `nsabench doctor`."
            ) from lost

    def borrow(self, scratch: Scratch) -> None:
        """Write to the scratch of another executor, which keeps it."""
        self.retire()
        if self._scratch is not None and not self._scratch_is_lent:
            self._scratch.remove()
        self._scratch, self._scratch_is_lent = scratch, True

    def credit(self, compiled_s: Mapping[tuple[str, str], float]) -> None:
        """Take the seconds of first calls made ahead, by case id and implementation."""
        self._compiled_s = compiled_s

    def sibling(self) -> WorkerExecutor:
        made = replace(self, checker=self._checker)
        made.borrow(self.scratch)
        return made

    def compile(self, case: Case, implementation: str, limit_s: float, *, probes: bool) -> Compiled:
        """Raises `WorkerLost`."""
        request = Compile(case=case, implementation=implementation, probes=probes)
        max_steps = 2 + MOST_PROBES * probes
        return self._ask(request, Compiled, limit_s, max_steps)

    def run(self, job: Job) -> Measured | Death:
        """Measure a job, or return how its worker died. Raises `WorkerRefused`."""
        self._worker.log.clear()
        try:
            return self._measure(job)
        except WorkerLost as lost:
            return lost.death

    def _measure(self, job: Job) -> Measured:
        case, names = job.case, list(job.implementations)
        seeds = input_seeds(self.entropy, job.purpose, case)
        computes = {name: self.computes.get((case.op, name), "") for name in names}
        # Probes do not depend on the length, so a candidate must be right on them at one only.
        series = ops.ladder(case)
        mine = {(series, name) for name in names if (case.op, name) in self.candidates}
        probes = job.purpose is Purpose.MAIN and not mine <= self._probed
        try:
            prepared = self._checker.prepare(case, sorted({*computes.values()}), seeds, probes)
        except CheckerLost as lost:
            self.retire()
            raise _without_checker(lost, BEFORE_ANY) from lost
        request = Measure(
            case=case.model_copy(update={"seed": 0}),
            implementations=names,
            prepared=prepared,
            seeds=seeds,
            early_exit=job.early_exit,
        )
        # Prechecks, parity, its result, warm-up and probes of each, and a few steps of the case.
        max_steps = (8 + len(prepared.probes)) * len(names) + 8
        sensors = nvml.Device.visible() if self.device == "cuda" else None
        try:
            with ConditionMonitor(sensors) as monitor:
                measured = self._ask(
                    request,
                    Measured,
                    case.timeout_s,
                    max_steps,
                    most_deliveries(job),
                    computes,
                    monitor.at_step,
                )
        except WorkerRefused as refused:
            if not self.is_clean:
                raise
            # A source may need a module that only comes with a candidate.
            raise WorkerLost(Death(status=Status.CRASHED, reason=str(refused))) from refused
        if sensors is not None:
            measured.conditions = monitor.summary(process.own_processes())
        self._refuse_answer(measured, names)
        try:
            judged = self._checker.conclude(len(names))
        except CheckerLost as lost:
            self.retire()
            raise _without_checker(lost, "diagnosis") from lost
        measured.observations = [
            with_judgement(observation, judged.get(observation.implementation))
            for observation in measured.observations
        ]
        if probes:
            right = {o.implementation for o in measured.observations if o.status is Status.OK}
            self._probed |= {(series, name) for series, name in mine if name in right}
        for observation in measured.observations:
            if observation.compile_s is not None:  # a kernel compiled ahead is only read here
                ahead_s = self._compiled_s.get((case.id, observation.implementation), 0.0)
                observation.compile_s = max(observation.compile_s, ahead_s)
        self._end_children(measured.observations)
        return measured

    def _refuse_answer(self, measured: Measured, names: list[str]) -> None:
        broken = None
        size = len(measured.model_dump_json(exclude=_ELSEWHERE).encode())
        if size > min(len(names) * MOST_ANSWER_BYTES, limits.LOG_LINE // 2):
            broken = broke_protocol(f"answered with {size} bytes, more than the log has room for")
        elif [observation.implementation for observation in measured.observations] != names:
            broken = broke_protocol("answered for others than it was asked for")
        if broken is not None:
            self.retire()
            raise WorkerLost(broken)

    def _end_children(self, observations: list[Observation]) -> None:
        left = self._worker.process.children() if self._worker.process is not None else []
        if not left:
            return
        self.retire()
        # Any of the implementations may have started them.
        for observation in observations:
            observation.notes.append(
                f"after it and those measured with it {len(left)} process(es) were left behind "
                "and killed"
            )

    @property
    def scratch(self) -> Scratch:
        if self._scratch is None:
            self._scratch = Scratch(self.run_folder)
        return self._scratch

    def log(self) -> str:
        return self._worker.log.text()

    def kill(self) -> None:
        self._worker.kill()

    def retire(self) -> None:
        self._worker.retire()

    def close(self) -> None:
        self.retire()
        if self.checker is None:
            self._checker.close()
        if self._scratch is not None and not self._scratch_is_lent:
            self._scratch.remove()
        self._scratch = None


def most_deliveries(job: Job) -> int:
    stopping = job.case.timing.stopping
    rounds = stopping.rounds if isinstance(stopping, FixedCount) else stopping.max_rounds
    return MOST_DELIVERIES + MOST_IN_A_ROUND * rounds * len(job.implementations)


def _find_candidates(infos: Iterable[ImplementationInfo]) -> Collection[tuple[str, str]]:
    return {(info.op, info.name) for info in infos if info.role is Role.CANDIDATE}


def find_forgery(delivery: Delivery, step: Step, computes: Mapping[str, str]) -> str:
    """Return why only foreign code can have sent a delivery at this step, or an empty text.

    computes: the op that each implementation of the job computes. In timed rounds the step names no
    implementation, so one may deliver for another.
    """
    name = delivery.implementation
    if name not in computes:
        return f"delivered an output of {name[:40]!r}, which is not measured here"
    if delivery.computes != computes[name]:
        return f"delivered an output of {name!r} for the op {delivery.computes[:40]!r}"
    if step.implementation not in ("", name):
        return f"delivered an output of {name!r} while {step.implementation[:40]!r} was called"
    return ""


def with_judgement(observation: Observation, judged: Judged | None) -> Observation:
    if judged is None:
        if observation.status is not Status.OK:
            return observation
        reason = "its process says that it is right, and delivered no output to be checked"
        update: dict[str, Any] = {"status": Status.CRASHED, "reason": reason}
    else:
        update = judged.model_dump(exclude={"status", "reason"})
        if judged.reason and observation.status in (Status.OK, Status.WRONG):
            update |= {"status": judged.status, "reason": judged.reason}
    if update.get("status", Status.OK) is not Status.OK:
        update |= {"samples": Samples(), "bursts": Bursts()}
    return observation.model_copy(update=update)


def _without_checker(lost: CheckerLost, phase: str, suspect: str = "") -> WorkerLost:
    return WorkerLost(lost.death.model_copy(update={"phase": phase, "suspect": suspect}))
