"""Runs jobs in a warm worker, which is replaced when it is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from nsabench import limits
from nsabench.checker.messages import Judged
from nsabench.delivery import Delivery
from nsabench.model.case import Case
from nsabench.model.description import Described
from nsabench.model.job import Death, Job
from nsabench.model.measurement import Bursts, Ceilings, Message, Observation, Samples
from nsabench.model.plan import Device, ImplementationInfo, Plan
from nsabench.model.source import Source
from nsabench.model.vocabulary import Status
from nsabench.running.supervisor import process, sensors
from nsabench.running.supervisor.checker import CheckerLost, CheckerProcess
from nsabench.running.supervisor.classify import classify
from nsabench.running.supervisor.loss import (
    WorkerFilledScratch,
    WorkerLost,
    WorkerRefused,
)
from nsabench.running.supervisor.process import MAX_STEPS, WorkerProcess
from nsabench.running.supervisor.program import measuring
from nsabench.running.supervisor.scratch import Scratch
from nsabench.verdicts.attempts import BEFORE_ANY
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

DISCOVER_LIMIT_S = 120.0
CALIBRATE_LIMIT_S = 120.0
# Of one implementation: 10,000 samples have less. A log with a longer line is not read at all.
MOST_SAID_BYTES = limits.LOG_LINE // 16
_ELSEWHERE = {"observations": {"__all__": {"traceback"}}}  # in a file of their own

M = TypeVar("M", bound=Message)


class JobLost(Exception):
    """A worker was lost before it answered. log: what it printed."""

    def __init__(self, death: Death, log: str = "") -> None:
        super().__init__(death.reason)
        self.death = death
        self.log = log

    @property
    def reason(self) -> str:
        return self.death.reason


class Executor(Protocol):
    """Runs jobs; has a mock twin in the tests."""

    def run(self, job: Job) -> Measured | Death:
        """Measure the implementations of a job together, or say how its worker ended."""
        ...

    def log(self) -> str:
        """What the worker printed since the last call of `run` began."""
        ...

    def close(self) -> None: ...


class WorkerExecutor:
    """The executor that runs real workers, one at a time."""

    def __init__(
        self,
        device: Device,
        kernels: Path | None = None,
        *,
        sources: Mapping[str, str] | None = None,
        ops_file: Path | None = None,
        run: Path | None = None,
        sandboxed: bool = True,
        computes: Mapping[tuple[str, str], str] = MappingProxyType({}),
        entropy: str = "",
        is_clean: bool = False,
        checker: CheckerProcess | None = None,
        on_step: Callable[[Step], None] = lambda step: None,
        memory_limit_bytes: int | None = None,
    ) -> None:
        """run: the folder of the run, which no worker sees unless it is not sandboxed.

        computes: by op and name, the op that an implementation computes, if it is another. entropy:
        what the seeds of inputs are made from, which no worker knows; drawn if not given.
        is_clean: whether its workers import no candidate. checker: one of its own if not given.
        """
        self.device = device
        self.kernels = kernels
        self.sources = sources
        self.ops_file = ops_file
        self.on_step = on_step
        self._memory_limit = memory_limit_bytes
        self._run = run
        self._sandboxed = sandboxed
        self._computes = computes
        self._entropy = entropy or token_hex(16)
        self.is_clean = is_clean
        self._scratch: Scratch | None = None
        self._scratch_is_lent = False
        self._is_sibling = False  # others write to its scratch at the same time
        self._compiled_s: Mapping[tuple[str, str], float] = {}
        self._worker: WorkerProcess | None = None
        self._checker = checker or CheckerProcess(device, ops_file)
        self._own_checker = checker is None
        self._last_log = ""

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        run: Path,
        sources: Iterable[str] | None = None,
        checker: CheckerProcess | None = None,
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> WorkerExecutor:
        """Workers that import these sources of a plan, and refuse them if they were changed.

        sources: all if not given.
        """
        imported = dict(plan.sources)
        if sources is not None:
            imported = {source: plan.sources[source] for source in sources}
        kernels = Path(plan.kernels) if plan.kernels else None
        if kernels is not None:
            # By its content: the file of the op may have the same name.
            own = Source.of_digest(kernels, plan.kernels_sha256)
            kernels = kernels if own in imported else None
        return cls(
            plan.device,
            kernels,
            sources=imported,
            ops_file=Path(plan.ops) if plan.ops else None,
            run=run,
            sandboxed=plan.sandboxed,
            computes={(i.op, i.name): i.computes for i in plan.implementations if i.computes},
            entropy=plan.entropy,
            is_clean=imported.keys() <= plan.clean_sources.keys() < plan.sources.keys(),
            checker=checker,
            on_step=on_step,
        )

    def imports(self, sources: Iterable[str]) -> bool:
        """Whether its workers import these sources and no others."""
        return set(sources) == set(self.sources or ())

    def _ask(
        self,
        request: Message,
        expected: type[M],
        limit_s: float,
        max_steps: int = MAX_STEPS,
        at_step: Callable[[Step], None] = lambda step: None,
    ) -> M:
        if self._worker is None:
            sandbox = self.scratch.next_sandbox() if self._sandboxed else None
            self._worker = WorkerProcess(
                measuring(
                    self.device,
                    self.kernels,
                    self.sources,
                    self.ops_file,
                    sandbox,
                    self._checker.mailbox,
                ),
                memory_limit_bytes=self._memory_limit,
            )
        worker = self._worker
        worker.log.clear()
        delivered = ""
        try:
            for reply in worker.ask(request, limit_s, max_steps=max_steps):
                if isinstance(reply, Step):
                    at_step(reply)
                    self.on_step(reply)
                elif isinstance(reply, Delivery):
                    delivered = reply.implementation
                    worker.tell(self._checker.check(reply))
                elif isinstance(reply, LostDevice):
                    death = Death(
                        status=Status.CRASHED, reason=reply.reason, suspect=reply.implementation
                    )
                    raise JobLost(death, self._retire())
                elif isinstance(reply, expected):
                    return reply
                else:
                    raise self._broken(f"its process answered with a {type(reply).__name__}")
        except CheckerLost as lost_checker:
            raise self._without_checker(lost_checker, "delivery", delivered) from lost_checker
        except WorkerLost as lost:
            status, reason = classify(lost)
            log = self._retire()
            if isinstance(lost, WorkerFilledScratch) and not self._is_sibling:
                self.scratch.empty()  # else the next worker would be ended for it
            death = Death(
                status=status,
                reason=reason,
                suspect=lost.step.implementation,
                phase=lost.step.phase,
            )
            raise JobLost(death, log) from lost
        except BaseException:
            self._retire()
            raise
        raise AssertionError("a worker's replies end with an answer or an exception")

    def discover(self) -> list[ImplementationInfo]:
        """What is installed and in the user's file. Raises `UsageError`s of the worker."""
        return self._ask(Discover(), Discovered, DISCOVER_LIMIT_S).implementations

    def describe(self) -> Described:
        return self._ask(Describe(), Described, DISCOVER_LIMIT_S)

    def calibrate(self) -> Ceilings:
        return self._ask(Calibrate(), Calibrated, CALIBRATE_LIMIT_S).ceilings

    def borrow(self, scratch: Scratch) -> None:
        """Have its next workers write to the scratch of others, which it does not remove."""
        self._retire()
        if self._scratch is not None and not self._scratch_is_lent:
            self._scratch.remove()
        self._scratch, self._scratch_is_lent = scratch, True

    def credit(self, compiled_s: Mapping[tuple[str, str], float]) -> None:
        """Count seconds of first calls that were made ahead, by case id and implementation."""
        self._compiled_s = compiled_s

    def sibling(self) -> WorkerExecutor:
        """Another, whose worker imports the same and has the same caches of compilers."""
        made = WorkerExecutor(
            self.device,
            self.kernels,
            sources=self.sources,
            ops_file=self.ops_file,
            run=self._run,
            sandboxed=self._sandboxed,
            memory_limit_bytes=self._memory_limit,
        )
        made.borrow(self.scratch)
        made._is_sibling = True
        return made

    def compile(self, case: Case, implementation: str, limit_s: float) -> Compiled:
        """Have it called, for what that leaves in the caches. Raises `JobLost`."""
        request = Compile(case=case, implementation=implementation)
        return self._ask(request, Compiled, limit_s, max_steps=2)

    def run(self, job: Job) -> Measured | Death:
        """Measure the implementations of a job together, or say how its worker ended.

        Raises `WorkerRefused` when a source cannot be imported any more.
        """
        self._last_log = ""
        try:
            return self._measure(job)
        except JobLost as lost:
            return lost.death
        except WorkerRefused as refused:
            if not self.is_clean:
                raise
            # One of the sources may need another that only a candidate comes from.
            return Death(status=Status.CRASHED, reason=str(refused))

    def _measure(self, job: Job) -> Measured:
        case, implementations = job.case, list(job.implementations)
        computes = {self._computes.get((case.op, name), "") for name in implementations}
        seeds = self._seeds(job)
        try:
            prepared = self._checker.prepare(case, sorted(computes), seeds)
        except CheckerLost as lost:
            raise self._without_checker(lost, BEFORE_ANY) from lost
        request = Measure(
            case=case.model_copy(update={"seed": 0}),
            implementations=implementations,
            prepared=prepared,
            seeds=seeds,
            early_exit=job.early_exit,
        )
        # Prechecks, parity, what came of it, diagnosis and warm-up of each, and a few of the case.
        max_steps = 8 * len(implementations) + 8
        with sensors.watching(self.device, process.own) as watch:
            measured = self._ask(request, Measured, case.timeout_s, max_steps, watch.at_step)
        measured.conditions = sensors.joined(measured.conditions, watch.seen)
        assert self._worker is not None
        said = len(measured.model_dump_json(exclude=_ELSEWHERE).encode())
        if said > min(len(implementations) * MOST_SAID_BYTES, limits.LOG_LINE // 2):
            how = f"its process answered with {said} bytes, more than the log has room for"
            raise self._broken(how)
        if [observation.implementation for observation in measured.observations] != implementations:
            raise self._broken("its process answered for others than it was asked for")
        self._last_log = self._worker.log.text()
        try:
            judged = self._checker.conclude(len(implementations))
        except CheckerLost as lost:
            raise self._without_checker(lost, "diagnosis") from lost
        measured.observations = [
            with_judgement(observation, judged.get(observation.implementation))
            for observation in measured.observations
        ]
        for observation in measured.observations:
            if observation.compile_s is not None:  # what was compiled ahead is only read by now
                ahead_s = self._compiled_s.get((case.id, observation.implementation), 0.0)
                observation.compile_s = max(observation.compile_s, ahead_s)
        left = self._worker.children()
        if left:
            names = ", ".join(sorted({_name(p) for p in left}))
            self._retire()
            for observation in measured.observations:
                # Which of them is not known: they shared the process that these are children of.
                observation.notes.append(
                    f"after it and those measured with it {len(left)} process(es) were left behind "
                    f"and killed: {names}"
                )
        return measured

    def _seeds(self, job: Job) -> list[int]:
        """The seeds of the sets of inputs: others for each pass, unknown until they are used. They
        are the same in each attempt, so that a run that was resumed has the same errors."""
        case = job.case
        count = max(2, case.streams, case.timing.rotate)
        of_job = f"{self._entropy}/{case.seed}/{case.id}/{job.purpose}"
        digests = (sha256(f"{of_job}/{number}".encode()) for number in range(count))
        return [int.from_bytes(digest.digest()[:7]) for digest in digests]

    def _broken(self, how: str) -> JobLost:
        """The worker did what only the bench may, and nothing that it says counts."""
        return JobLost(Death(status=Status.CRASHED, reason=f"{how}; killed"), self._retire())

    def _without_checker(self, lost: CheckerLost, phase: str, suspect: str = "") -> JobLost:
        """suspect: whose delivery the checker was lost at."""
        death = Death(status=lost.status, reason=lost.reason, suspect=suspect, phase=phase)
        return JobLost(death, self._retire())

    @property
    def scratch(self) -> Scratch:
        """What its workers write to."""
        if self._scratch is None:
            self._scratch = Scratch(self._run)
        return self._scratch

    def processes(self) -> list[int]:
        """Its worker and what that started, by their numbers."""
        if self._worker is None:
            return []
        return [self._worker.pid, *(child.pid for child in self._worker.children())]

    def log(self) -> str:
        return self._last_log

    def kill(self) -> None:
        """End its worker at once: whoever waits for it finds it lost. Any thread."""
        if self._worker is not None:
            self._worker.kill()

    def retire(self) -> None:
        """End its worker, with what it left on the device. The next request starts another."""
        self._retire()

    def _retire(self) -> str:
        worker, self._worker = self._worker, None
        if worker is None:
            return ""
        worker.stop()
        self._last_log = worker.log.text()
        return self._last_log

    def close(self) -> None:
        self._retire()
        if self._own_checker:
            self._checker.close()
        if self._scratch is not None and not self._scratch_is_lent:
            self._scratch.remove()
        self._scratch = None


def with_judgement(observation: Observation, judged: Judged | None) -> Observation:
    """What a worker says of an implementation, with what the checker found: that counts more."""
    if judged is None:
        if observation.status is not Status.OK:
            return observation
        reason = "its process says that it is right, and delivered no output to be checked"
        update: dict[str, Any] = {"status": Status.CRASHED, "reason": reason}
    else:
        update = judged.model_dump(exclude={"reason"})
        if judged.reason and observation.status in (Status.OK, Status.WRONG):
            update |= {"status": Status.WRONG, "reason": judged.reason}
    if update.get("status", Status.OK) is not Status.OK:
        update |= {"samples": Samples(), "bursts": Bursts()}
    return observation.model_copy(update=update)


def _name(process: object) -> str:
    import psutil

    assert isinstance(process, psutil.Process)
    try:
        return process.name()
    except psutil.Error:
        return "?"
