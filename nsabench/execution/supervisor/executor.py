"""Measures a group of implementations on a case, in a warm worker that is replaced when lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nsabench import limits
from nsabench.checker.messages import Judged
from nsabench.delivery import Delivery
from nsabench.execution.protocol import (
    NOBODY,
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
    Spare,
    Step,
)
from nsabench.execution.supervisor import process, sensors
from nsabench.execution.supervisor.checker import CheckerLost, CheckerProcess
from nsabench.execution.supervisor.classify import classify
from nsabench.execution.supervisor.loss import WorkerFilledScratch, WorkerLost
from nsabench.execution.supervisor.process import MAX_STEPS, WorkerProcess
from nsabench.execution.supervisor.program import measuring
from nsabench.execution.supervisor.scratch import Scratch
from nsabench.model.case import Case
from nsabench.model.description import Described
from nsabench.model.measurement import Bursts, Ceilings, Message, Outcome, Samples
from nsabench.model.plan import Device, ImplementationInfo, Plan
from nsabench.model.source import Source
from nsabench.model.vocabulary import Status

DISCOVER_LIMIT_S = 120.0
CALIBRATE_LIMIT_S = 120.0
CHECKING = "inputs"  # the phase that a lost checker ends: before any implementation was called
# Of one implementation: 10,000 samples have less. A journal with a longer line is not read at all.
MOST_SAID_BYTES = limits.JOURNAL_LINE // 16
_ELSEWHERE = {"outcomes": {"__all__": {"log", "traceback"}}}  # in a file of their own

M = TypeVar("M", bound=Message)


class GroupLost(Exception):
    """The group's worker was lost. `suspect` is whom it was busy with, '' if that is unknown."""

    def __init__(
        self,
        suspect: str,
        status: Status,
        reason: str,
        log: str,
        *,
        phase: str = "",
    ) -> None:
        super().__init__(reason)
        self.suspect = suspect
        self.status = status
        self.reason = reason
        self.log = log
        self.phase = phase


class Executor(Protocol):
    """Measures; has a mock twin in the tests."""

    def measure(self, case: Case, implementations: list[str], session: int) -> Measured:
        """Measure the implementations together. Raises `GroupLost`."""
        ...

    def log(self) -> str:
        """What the worker printed since the last call of `measure` began."""
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
        on_step: Callable[[Step], None] = lambda step: None,
        memory_limit_bytes: int | None = None,
    ) -> None:
        """run: the folder of the run, which no worker sees unless it is not sandboxed."""
        self.device = device
        self.kernels = kernels
        self.sources = sources
        self.ops_file = ops_file
        self.on_step = on_step
        self._memory_limit = memory_limit_bytes
        self._run = run
        self._sandboxed = sandboxed
        # By op and name, the op that an implementation computes, if it is another.
        self.computes: Mapping[tuple[str, str], str] = {}
        self.entropy = ""  # what seeds of inputs are made from, which no worker knows
        # Whether its workers import no candidate.
        self.is_clean = False
        # By the id of a case, who of it need not be measured as the others are.
        self.spares: Mapping[str, Spare] = {}
        self._scratch: Scratch | None = None
        self._scratch_is_lent = False
        self._is_sibling = False  # others write to its scratch at the same time
        # Seconds of first calls that were made ahead, by case and implementation.
        self.compiled_s: dict[tuple[str, str], float] = {}
        self._worker: WorkerProcess | None = None
        self._mailbox = os.memfd_create("nsabench-outputs")
        self._checker = CheckerProcess(device, ops_file, self._mailbox)
        self._last_log = ""

    @classmethod
    def of_plan(cls, plan: Plan, run: Path) -> WorkerExecutor:
        """Workers that import all sources of the plan, and refuse them if they were changed."""
        kernels = Path(plan.kernels) if plan.kernels else None
        ops_file = Path(plan.ops) if plan.ops else None
        # No sources: a plan made before they were recorded.
        executor = cls(
            plan.device,
            kernels,
            sources=plan.sources or None,
            ops_file=ops_file,
            run=run,
            sandboxed=plan.sandboxed,
        )
        executor._draw_as(plan)
        return executor

    @classmethod
    def without_candidates(cls, plan: Plan, run: Path) -> WorkerExecutor:
        """Workers that import the sources that no candidate of the plan comes from."""
        sources = plan.clean_sources
        kernels = Path(plan.kernels) if plan.kernels else None
        # By its content: the file of the op may have the same name.
        own = Source.of_digest(kernels, plan.kernels_sha256) if kernels is not None else None
        executor = cls(
            plan.device,
            kernels if own in sources else None,
            sources=sources if plan.sources else None,
            ops_file=Path(plan.ops) if plan.ops else None,
            run=run,
            sandboxed=plan.sandboxed,
        )
        executor.is_clean = True
        executor._draw_as(plan)
        return executor

    def _draw_as(self, plan: Plan) -> None:
        """Have inputs drawn, and outputs checked, as the plan says."""
        self.entropy = plan.entropy
        self.computes = {(i.op, i.name): i.computes for i in plan.implementations if i.computes}

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
                    self.device, self.kernels, self.sources, self.ops_file, sandbox, self._mailbox
                ),
                memory_limit_bytes=self._memory_limit,
            )
        worker = self._worker
        worker.log.clear()
        try:
            for reply in worker.ask(request, limit_s, max_steps=max_steps):
                if isinstance(reply, Step):
                    at_step(reply)
                    self.on_step(reply)
                elif isinstance(reply, Delivery):
                    worker.tell(self._checker.check(reply))
                elif isinstance(reply, LostDevice):
                    log = self._retire()
                    raise GroupLost(reply.implementation, Status.CRASHED, reply.reason, log)
                elif isinstance(reply, expected):
                    return reply
                else:
                    reason = f"its process answered with a {type(reply).__name__}; killed"
                    raise GroupLost("", Status.CRASHED, reason, self._retire())
        except CheckerLost as lost_checker:
            raise self._without_checker(lost_checker) from lost_checker
        except WorkerLost as lost:
            status, reason = classify(lost)
            log = self._retire()
            if isinstance(lost, WorkerFilledScratch) and not self._is_sibling:
                self.scratch.empty()  # else the next worker would be ended for it
            raise GroupLost(
                lost.step.implementation, status, reason, log, phase=lost.step.phase
            ) from lost
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
        """Have it called, for what that leaves in the caches. Raises `GroupLost`."""
        request = Compile(case=case, implementation=implementation)
        return self._ask(request, Compiled, limit_s, max_steps=2)

    def measure(self, case: Case, implementations: list[str], session: int) -> Measured:
        computes = {self.computes.get((case.op, name), "") for name in implementations}
        seeds = self._seeds(case, session)
        try:
            prepared = self._checker.prepare(case, sorted(computes), seeds)
        except CheckerLost as lost:
            raise self._without_checker(lost) from lost
        request = Measure(
            case=case.model_copy(update={"seed": 0}),
            implementations=implementations,
            session=session,
            prepared=prepared,
            seeds=seeds,
            spare=self.spares.get(case.id, NOBODY),
        )
        # Glances, parity, what came of it, diagnosis and warm-up of each, and a few of the case.
        max_steps = 8 * len(implementations) + 8
        with sensors.watching(self.device, process.own) as watch:
            measured = self._ask(request, Measured, case.timeout_s, max_steps, watch.at_step)
        measured.conditions = sensors.joined(measured.conditions, watch.seen)
        assert self._worker is not None
        said = len(measured.model_dump_json(exclude=_ELSEWHERE))
        if said > min(len(implementations) * MOST_SAID_BYTES, limits.JOURNAL_LINE // 2):
            reason = f"its process answered with {said} bytes, more than a line of the journal has "
            raise GroupLost("", Status.CRASHED, reason + "room for; killed", self._retire())
        self._last_log = self._worker.log.text()
        try:
            judged = self._checker.conclude(len(implementations))
        except CheckerLost as lost:
            raise self._without_checker(lost) from lost
        measured.outcomes = [
            with_judgement(outcome, judged.get(outcome.implementation))
            for outcome in measured.outcomes
        ]
        for outcome in measured.outcomes:
            if outcome.compile_s is not None:  # what was compiled ahead is only read by now
                ahead_s = self.compiled_s.get((case.id, outcome.implementation), 0.0)
                outcome.compile_s = max(outcome.compile_s, ahead_s)
        left = self._worker.children()
        if left:
            names = ", ".join(sorted({_name(p) for p in left}))
            self._retire()
            for outcome in measured.outcomes:
                # Which of them is not known: they shared the process that these are children of.
                outcome.notes.append(
                    f"after it and those measured with it {len(left)} process(es) were left behind "
                    f"and killed: {names}"
                )
        return measured

    def _seeds(self, case: Case, session: int) -> list[int]:
        """The seeds of the sets of inputs: others for each pass, unknown until they are used."""
        count = max(2, case.streams, case.timing.rotate)
        of_job = f"{self.entropy}/{case.seed}/{case.id}/{session // 1_000_000}"
        digests = (sha256(f"{of_job}/{number}".encode()) for number in range(count))
        return [int.from_bytes(digest.digest()[:7]) for digest in digests]

    def _without_checker(self, lost: CheckerLost) -> GroupLost:
        """The case, or the machine, is the fault: no implementation reaches the checker."""
        return GroupLost("", lost.status, lost.reason, self._retire(), phase=CHECKING)

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
        self._checker.close()
        os.close(self._mailbox)
        if self._scratch is not None and not self._scratch_is_lent:
            self._scratch.remove()
        self._scratch = None


def with_judgement(outcome: Outcome, judged: Judged | None) -> Outcome:
    """What a worker says of an implementation, with what the checker found: that counts more."""
    if judged is None:
        if outcome.status is not Status.OK:
            return outcome
        reason = "its process says that it is right, and delivered no output to be checked"
        update: dict[str, Any] = {"status": Status.CRASHED, "reason": reason}
    else:
        update = judged.model_dump(exclude={"deliveries", "reason"})
        if judged.reason and outcome.status in (Status.OK, Status.WRONG):
            update |= {"status": Status.WRONG, "reason": judged.reason}
    if update.get("status", Status.OK) is not Status.OK:
        update |= {"samples": Samples(), "bursts": Bursts()}
    return outcome.model_copy(update=update)


def _name(process: object) -> str:
    import psutil

    assert isinstance(process, psutil.Process)
    try:
        return process.name()
    except psutil.Error:
        return "?"
