"""Run a plan from end to end: discover, plan, run jobs until none is left, derive the results."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from nsabench import labels, ops, registry
from nsabench.errors import EnvironmentRefused, Interrupted, NsabenchError, UsageError
from nsabench.files import whole, writing
from nsabench.machine import doctor
from nsabench.machine.doctor.driver import explain_unusable
from nsabench.machine.environment import nvml
from nsabench.machine.environment.collect import collect
from nsabench.machine.environment.container import read_container
from nsabench.machine.environment.gpu import read_driver
from nsabench.machine.environment.identity import machine_of
from nsabench.model.description import Described
from nsabench.model.job import Job
from nsabench.model.log import Log, Session
from nsabench.model.measurement import Ceilings
from nsabench.model.plan import Device, ImplementationInfo, Plan, PlannedCase
from nsabench.model.record import Comparison
from nsabench.model.vocabulary import MARGIN, Purpose
from nsabench.planning import resolve
from nsabench.planning.narrow import ALL, Narrowed
from nsabench.running import resume_checks
from nsabench.running.attempt import attempt
from nsabench.running.compilation import Ahead
from nsabench.running.discovery import discover
from nsabench.running.folder import SHARDS, RunFolder
from nsabench.running.log import LogFile
from nsabench.running.log import read as read_log
from nsabench.running.policy import canary_jobs, judge, next_jobs
from nsabench.running.supervisor.checker import CheckerProcess
from nsabench.running.supervisor.executor import WorkerExecutor
from nsabench.signing import Signer
from nsabench.signing.signer import make_run_key
from nsabench.verdicts import tables
from nsabench.verdicts.attempts import CaseState, state_of
from nsabench.verdicts.merged import assemble
from nsabench.verdicts.results import Results, assess, refuse_other_log
from nsabench.verdicts.tables import write_tables
from nsabench.worker.protocol import Step

ANNOUNCEMENTS = {
    Purpose.CONFIRMATION: "confirming {case}",
    Purpose.ISOLATED: "baselines of {case} without the candidates",
    Purpose.CANARY: "the case that all shards measure: {case}",
}


class View(Protocol):
    def case_started(self, planned: PlannedCase, number: int, total: int) -> None: ...

    def case_finished(self, planned: PlannedCase, state: CaseState) -> None: ...

    def note(self, text: str) -> None: ...

    def run_started(self, plan: Plan, described: Described, ceilings: Ceilings) -> None: ...

    def step(self, step: Step) -> None: ...


@dataclass(frozen=True)
class Finished:
    """A complete run. wall_s, measuring_s: seconds since it was started or resumed.

    signer: None if the run was only read. log_end: the digest of the last line of its log.
    """

    folder: RunFolder
    plan: Plan
    results: Results
    wall_s: float
    measuring_s: float
    signer: Signer | None = None
    log_end: str = ""


def choose_device(requested: str) -> Device:
    """Return the device to measure on.

    Raises `EnvironmentRefused` for "auto" on a host with a GPU that cannot be used.
    """
    if requested == "cuda" or requested == "cpu":
        return requested  # type: ignore[return-value]
    if nvml.Device.all():
        return "cuda"
    unusable = explain_unusable(read_driver(), read_container(os.environ, {}).shut_in)
    if unusable is not None:
        raise EnvironmentRefused(
            unusable.what.removesuffix("."),
            f"{unusable.remedy} To measure on the CPU instead: `--device cpu`.",
        )
    return "cpu"


def make_plan(
    matrices: Sequence[str],
    device: Device,
    kernels: Path | None,
    shard: str = "1/1",
    ops_file: Path | None = None,
    margin: float = MARGIN,
    *,
    sandboxed: bool = True,
    brief: bool = False,
    narrowed: Narrowed = ALL,
) -> Plan:
    """Resolve matrices against what is installed. Raises `UsageError` if something is broken."""
    kernels, ops_file = _absolute(kernels), _absolute(ops_file)
    if ops_file is not None:
        ops.load_file(ops_file)
    loaded = resolve.load_matrices(matrices or resolve.default_matrices(device))
    for name in {case.op for matrix in loaded for case in matrix.cases}:
        tables.refuse_sizes(ops.get(name))
    sources = registry.sources(kernels, ops_file)
    implementations = discover(device, kernels, ops_file, sources, sandboxed=sandboxed)
    plan = resolve.resolve(
        loaded,
        implementations,
        device=device,
        kernels=kernels,
        ops_file=ops_file,
        sources=sources,
        shard=shard,
        margin=margin,
        sandboxed=sandboxed,
        brief=brief,
        narrowed=narrowed,
    )
    ops.refuse_other(plan)  # the file may have changed since its op was loaded
    return plan


def installed(
    kernels: Path | None = None, ops_file: Path | None = None
) -> list[ImplementationInfo]:
    """Return all implementations. Raises `UsageError` if one cannot be imported."""
    kernels, ops_file = _absolute(kernels), _absolute(ops_file)
    sources = registry.sources(kernels, ops_file)
    return discover("cpu", kernels, ops_file, sources, sandboxed=True)


def _absolute(file: Path | None) -> Path | None:
    return file.absolute() if file is not None else None  # a run may be resumed elsewhere


def start(
    plan: Plan,
    out: Path | None,
    view: View,
    *,
    signer: Signer | None = None,
    fit: bool = False,
) -> Finished:
    """signer: None makes a key for the run. fit: raise `EnvironmentRefused` on an unfit machine."""
    folder = RunFolder(out or Path("results") / plan.run_id)
    folder.create()
    try:
        with writing(folder.path, f"remove {folder.path} and start again"):
            plan.write(folder.plan)
            if out is None:
                folder.link_latest()
        with folder.resumable():
            return _Run(folder, plan, view, signer, fit).measure()
    except Interrupted:
        if not is_begun(folder.path):
            folder.discard()
            raise KeyboardInterrupt from None
        raise
    except NsabenchError as refused:
        # If the disk is full, the remedy is to resume this run.
        if not isinstance(refused.__cause__, OSError):
            if not is_begun(folder.path):
                folder.discard()
            # A worker refused, for example since the kernels were edited.
            elif refused.exit_code == UsageError.exit_code:
                refused.folder = str(folder.path)
        raise


def is_begun(path: Path) -> bool:
    folder = RunFolder(path)
    is_merged = (path / SHARDS).exists()
    return is_merged or (folder.log.exists() and bool(read_log(folder.log).sessions))


def resume(
    path: Path,
    view: View,
    *,
    signer: Signer | None = None,
    fit: bool = False,
) -> Finished:
    folder = RunFolder.existing(path)
    folder.refuse_foreign()
    plan = Plan.read(folder.plan)
    with folder.writing():
        folder.logs.mkdir(exist_ok=True)
    with folder.resumable():
        return _Run(folder, plan, view, signer, fit, resumed=True).measure()


def read(path: Path) -> Finished:
    """Return a run without executing a file. Raises `UsageError` if its op is in a file."""
    folder = RunFolder.existing(path)
    plan = Plan.read(folder.plan)
    if not ops.has_op_of(plan):
        raise UsageError(
            f"{path} is finished and left as it is; what it shows is derived with the op of "
            f"{Path(plan.ops).name}, a file that is not executed for that",
            f"look at its reports, or make new ones: `nsabench report {path} "
            f"--ops {Path(plan.ops).name} --out DIR`.",
        )
    results = assemble(plan.run_id, folder.parts())
    return Finished(folder, plan, results, wall_s=0, measuring_s=0)


@dataclass
class _Run:
    """A run in its folder; its methods in order are the procedure."""

    folder: RunFolder
    plan: Plan
    view: View
    signer: Signer | None
    fit: bool
    resumed: bool = False

    def __post_init__(self) -> None:
        self._judge = _RememberedJudge()
        self._number = {planned.id: number for number, planned in enumerate(self.plan.cases, 1)}
        self._is_open = False  # whether the session of this process has begun
        self._shows_steps = False
        self._executor: WorkerExecutor | None = None

    def measure(self) -> Finished:
        began = time.monotonic()
        ops_file = Path(self.plan.ops) if self.plan.ops else None
        self.view.note(f"results go to {self.folder.path}")
        with (
            self.folder.writing(),
            closing(LogFile(self.folder.log)) as self._file,
            closing(Ahead(self.plan, self.folder.path)) as self._ahead,
            closing(
                CheckerProcess(self.plan.device, ops_file, self.plan.ops_sha256)
            ) as self._checker,
        ):
            log = self._file.log
            refuse_other_log(self.plan, log)
            self.signer = self._find_signer()
            if ops_file is not None and not ops.has_op_of(self.plan):
                # Not before the signature was checked: a plan without one may name any file.
                ops.load_file(ops_file, self.plan.ops_sha256)
            before_s = log.measuring_s
            try:
                self._run_jobs()
            finally:
                if self._executor is not None:
                    self._executor.close()
            results = assess(self.plan, log).results()
            write_tables(results, self.plan.run_id, self.folder.path)
        return Finished(
            self.folder,
            self.plan,
            results,
            time.monotonic() - began,
            log.measuring_s - before_s + self._ahead.wall_s,
            self.signer,
            self._file.end,
        )

    def _find_signer(self) -> Signer:
        if not self.resumed:
            return self.signer or make_run_key(self.folder.path)
        signer = resume_checks.find_signer(self.folder, self._file.origin, self.signer)
        resume_checks.refuse_changed_environment(self.folder, self._file.log)
        return signer

    def _run_jobs(self) -> None:
        while jobs := next_jobs(self.plan, self._file.log, self._judge):
            for job in jobs:
                if not self._run_job(job, jobs):
                    break

    def _run_job(self, job: Job, jobs: Sequence[Job]) -> bool:
        executor = self._executor_of(job, jobs)
        planned = self.plan.case_or_canary(job.case.id)
        is_main = job.purpose is Purpose.MAIN
        if is_main:
            self.view.case_started(planned, self._number[planned.id], len(self.plan.cases))
        else:
            case = labels.of_case(planned.case)
            self.view.note(ANNOUNCEMENTS[job.purpose].format(case=case))
        self._shows_steps = is_main
        attempt(job, executor, self._file.append, self.folder.keep_printed)
        state = state_of(self.plan, self._file.log, job.purpose, planned)
        if state.next is not None:
            return False
        if is_main:
            self.view.case_finished(planned, state)
        return True

    def _step(self, step: Step) -> None:
        if self._shows_steps:
            self.view.step(step)

    def _executor_of(self, job: Job, jobs: Sequence[Job]) -> WorkerExecutor:
        """Return workers that import the sources of a job. The first ones open the session."""
        if self._executor is not None:
            if self._executor.imports(job.sources):
                return self._executor
            self._executor.close()
        executor = self._executor = WorkerExecutor.of_plan(
            self.plan, self.folder.path, job.sources, self._checker, self._step
        )
        if not self._is_open:
            self._open(executor)
        session = self._file.log.sessions[-1]
        left = [*jobs, *canary_jobs(self.plan, self._file.log)]
        self._ahead.compile(left, session.described.device.memory_bytes, self.view.note)
        self._ahead.lend(executor, session.described.sandbox or "")
        return executor

    def _open(self, executor: WorkerExecutor) -> None:
        """Describe and calibrate the machine, and log the session of this process."""
        log = self._file.log
        described = executor.describe()
        resume_checks.refuse_other_software(described, log)
        machine = machine_of(self.plan.run_id, described)
        resume_checks.refuse_other_machine(machine, log)
        if self.fit or not log.sessions:
            # Before this run itself changes clocks, temperature and processes.
            environment = collect(described, self.plan)
            if not log.sessions:
                content = f"{environment.model_dump_json(indent=1)}\n".encode()
                whole(self.folder.environment, content)
            if self.fit:
                for problem in doctor.refuse_unfit(environment, results=self.folder.path):
                    self.view.note(f"{problem.severity}: {problem.what} {problem.remedy}")
        ceilings = executor.calibrate()
        assert self.signer is not None
        self._file.sign_as(self.signer)
        self._file.append(
            Session(
                run_id=self.plan.run_id,
                plan_sha256=self.plan.sha256,
                environment_sha256=resume_checks.digest(self.folder.environment),
                started=datetime.now(UTC),
                machine=machine,
                distributions=registry.distributions(),
                described=described,
                ceilings=ceilings,
            )
        )
        self._is_open = True
        self.view.run_started(self.plan, described, ceilings)


class _RememberedJudge:
    """Judges a log once for each number of attempts in it."""

    def __init__(self) -> None:
        self._judged: dict[int, list[Comparison]] = {}

    def __call__(self, plan: Plan, log: Log) -> list[Comparison]:
        count = len(log.attempts)
        if count not in self._judged:
            self._judged[count] = judge(plan, log)
        return self._judged[count]
