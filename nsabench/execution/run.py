"""A run from end to end: discover, plan, and measure pass after pass, then derive the results."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Protocol

from nsabench import ops, registry
from nsabench.assessment import parquet, tables
from nsabench.assessment.results import Assessed, Results, assemble, assess, belongs
from nsabench.assessment.verdict import Judgement, Key
from nsabench.errors import EnvironmentRefused, NsabenchError, UsageError
from nsabench.execution import compilation, journal, schedule, vouch
from nsabench.execution.chain import Sealer
from nsabench.execution.discovery import discover
from nsabench.execution.folder import RunFolder
from nsabench.execution.journal import Journal
from nsabench.execution.passes import PASSES, Pass, canary
from nsabench.execution.protocol import Step
from nsabench.execution.same_machine import described_as_before
from nsabench.execution.supervisor.executor import GroupLost, WorkerExecutor
from nsabench.files import whole, writing
from nsabench.machine import doctor
from nsabench.machine.environment.collect import collect
from nsabench.machine.environment.identity import machine_of
from nsabench.model.description import Described
from nsabench.model.journal import Contents, Header
from nsabench.model.measurement import Ceilings
from nsabench.model.plan import Device, ImplementationInfo, Plan
from nsabench.model.source import Source
from nsabench.model.vocabulary import MARGIN, PassName
from nsabench.planning import resolve
from nsabench.planning.narrow import ALL, Narrowed
from nsabench.signing import Signer
from nsabench.signing.signer import make_run_key

Infos = Sequence[ImplementationInfo]


class View(schedule.Progress, Protocol):
    """Where a run shows what it does: to a person, or to nobody."""

    def run_started(self, plan: Plan, described: Described, ceilings: Ceilings) -> None: ...

    def step(self, step: Step) -> None: ...


@dataclass(frozen=True)
class Finished:
    """A complete run. wall_s, measuring_s and queue_s: of this time, if it was resumed.

    signer: in whose name it was measured; None of a run that was only read. journal_end: the link
    of the last line of its journal, as it was written.
    """

    folder: RunFolder
    plan: Plan
    results: Results
    wall_s: float
    measuring_s: float
    signer: Signer | None = None
    journal_end: str = ""
    queue_s: float = 0.0


def choose_device(requested: str) -> Device:
    """`auto` is cuda where the driver shows a device. The supervisor does not import torch."""
    if requested == "cuda" or requested == "cpu":
        return requested  # type: ignore[return-value]
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, timeout=30, check=True, text=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return "cpu"
    return "cuda" if "GPU" in listing else "cpu"


def make_plan(
    matrices: Sequence[str],
    device: Device,
    kernels: Path | None,
    shard: str = "1/1",
    ops_file: Path | None = None,
    margin: float = MARGIN,
    *,
    sandboxed: bool = True,
    narrowed: Narrowed = ALL,
    tag: str = "",
) -> Plan:
    """Load the matrices and resolve them against what is installed; by the options of
    `resolve.resolve`.

    Raises `UsageError` for a bad matrix, a broken implementation or a broken op, before anything is
    measured.
    """
    # A run may be resumed from another folder.
    kernels = kernels.absolute() if kernels is not None else None
    ops_file = ops_file.absolute() if ops_file is not None else None
    if ops_file is not None:
        ops.load_file(ops_file)
    loaded = resolve.load_matrices(matrices or resolve.default_matrices(device))
    for name in {case.op for one in loaded for case in one.cases}:
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
        narrowed=narrowed,
        tag=tag,
    )
    ops.refuse_other(plan)  # the file may have changed since its op was loaded
    return plan


def installed(kernels: Path | None = None, ops_file: Path | None = None) -> Infos:
    """All implementations that a run could take from what is installed and the user's files.

    Raises `UsageError` for one that cannot be imported.
    """
    kernels = kernels.absolute() if kernels is not None else None
    ops_file = ops_file.absolute() if ops_file is not None else None
    sources = registry.sources(kernels, ops_file)
    return discover("cpu", kernels, ops_file, sources, sandboxed=True)


def version_of(source: Source) -> str:
    """Of the distribution that implementations come from; of a file, the start of its sha256."""
    if source.is_file:
        return source.digest
    try:
        return metadata.version(source)
    except metadata.PackageNotFoundError:
        return ""


def start(
    plan: Plan,
    out: Path | None,
    view: View,
    *,
    signer: Signer | None = None,
    fit: bool = False,
) -> Finished:
    """Run a plan into a new folder.

    signer: in whose name; None: a key that is made for the run. fit: look at the machine first;
    raises `EnvironmentRefused` when measuring on it is pointless.
    """
    folder = RunFolder(out or Path("results") / plan.run_id)
    folder.create()
    try:
        with writing(folder.path, f"remove {folder.path} and start again"):
            plan.write(folder.plan)
            if out is None:
                folder.is_latest()
        with folder.resumable():
            return _Run(folder, plan, view, signer, fit).measure()
    except NsabenchError as refused:
        # A disk that is full has a remedy that goes on with the run.
        if not isinstance(refused.__cause__, OSError):
            if not is_begun(folder.path):
                folder.discard()
            # A worker's refusal comes as its exit code: of kernels that were edited, say.
            elif refused.exit_code == UsageError.exit_code:
                refused.folder = str(folder.path)
        raise


def is_begun(path: Path) -> bool:
    """Return whether a run in this folder has measured anything, if only the ceilings."""
    folder = RunFolder(path)
    return folder.journal.exists() and bool(journal.read(folder.journal).headers)


def discard_unbegun(path: Path) -> None:
    """Remove what a run left that was killed before it measured anything.

    Raises `UsageError` when another process is writing that run.
    """
    folder = RunFolder(path)
    if not folder.plan.is_file():
        return
    with closing(Journal(folder.journal)):  # it holds the lock
        folder.discard()


def resume(
    path: Path,
    view: View,
    *,
    signer: Signer | None = None,
    fit: bool = False,
) -> Finished:
    """Go on with a run that was interrupted; cases that are journaled are not run again.

    Raises `VerificationFailed` when what is journaled was not measured in the name of `signer`.
    """
    folder = RunFolder.existing(path)
    folder.refuse_links()
    plan = Plan.read(folder.plan)
    with folder.writing():
        folder.logs.mkdir(exist_ok=True)
    with folder.resumable():
        return _Run(folder, plan, view, signer, fit, resumed=True).measure()


def read(path: Path) -> Finished:
    """A run as it lies there; nothing is measured, and no file of the user's is executed.

    Raises `UsageError` when what it shows cannot be derived without the file of its op.
    """
    folder = RunFolder.existing(path)
    plan = Plan.read(folder.plan)
    if not ops.has_op_of(plan):
        raise UsageError(
            f"{path} is finished and left as it is; what it shows is derived with the op of "
            f"{Path(plan.ops).name}, a file that is not executed for that",
            f"look at its reports, or make new ones: `nsabench report {path} "
            f"--ops {Path(plan.ops).name} --out DIR`.",
        )
    results = assemble(plan, journal.read(folder.journal))
    return Finished(folder, plan, results, wall_s=0, measuring_s=0)


class _Run:
    """A run in its folder; its methods in order are the procedure."""

    def __init__(
        self,
        folder: RunFolder,
        plan: Plan,
        view: View,
        signer: Signer | None,
        fit: bool,
        *,
        resumed: bool = False,
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.view = view
        self.signer = signer
        self.fit = fit
        self.resumed = resumed
        self._assessed: Assessed | None = None
        self._judged_before: dict[PassName, Mapping[Key, Judgement]] = {}
        self._ahead = compilation.Ahead(plan, folder.path)
        self._held = ""  # what holds the workers of this sitting

    def measure(self) -> Finished:
        """Measure what is not journaled yet, and derive the results."""
        began = time.monotonic()
        self.view.note(f"results go to {self.folder.path}")
        with self.folder.writing():
            with closing(Journal(self.folder.journal)) as self.journal:
                contents = self.journal.contents
                belongs(self.plan, contents)
                signer = self._vouch()
                if self.plan.ops and not ops.has_op_of(self.plan):
                    # Not before: a plan that nobody vouches for may name any file.
                    ops.load_file(Path(self.plan.ops), self.plan.ops_sha256)
                measured_before_s, queue_before_s = contents.measuring_s, contents.queue_s
                with closing(self._ahead):
                    for pass_ in PASSES:
                        self._look(pass_)
                results = self._assess().results(contents)
            parquet.write(results, self.plan.run_id, self.folder.path)
        return Finished(
            self.folder,
            self.plan,
            results,
            time.monotonic() - began,
            contents.measuring_s - measured_before_s + self._ahead.wall_s,
            signer,
            self.journal.end,
            contents.queue_s - queue_before_s,
        )

    def _vouch(self) -> Signer:
        """In whose name the run is measured. Raises `VerificationFailed` when what is journaled,
        or the description of the machine beside it, is not by the same."""
        if not self.resumed:
            if self.signer is None:
                self.signer = make_run_key(self.folder.path)
        else:
            self.signer = vouch.same_signer(self.folder, self.journal.origin, self.signer)
            vouch.same_environment(self.folder, self.journal.contents)
        return self.signer

    def _look(self, pass_: Pass) -> None:
        """Measure the cases of one pass that it has not journaled yet."""
        cells = pass_.cells(self.plan, lambda: self._judgements_before(pass_))
        if cells.keys() <= self.journal.done(pass_.name):
            return
        with closing(pass_.start(self.plan, self.folder.path)) as executor:
            executor.on_step = partial(self._step, shown=not pass_.announcement)
            executor.spares = pass_.spares(self.plan)
            self._prepare(executor, pass_, cells)
            schedule.run(pass_, cells, self.plan, executor, self.journal, self.folder, self.view)

    def _prepare(
        self, executor: WorkerExecutor, pass_: Pass, cells: Mapping[str, list[str]]
    ) -> None:
        """Have it find compiled what the cells of the pass need."""
        described = described_as_before(executor, self.journal.contents.headers)
        self._held = described.sandbox or ""
        self._sit(described)
        if pass_.name is PassName.FIRST_LOOK:
            self._open(executor, described)
        device = self.journal.contents.headers[-1].described.device
        wanted = self._compiled_before(pass_, cells)
        self._ahead.compile(wanted, device.memory_bytes, self.view.note)
        self._ahead.lend(executor, self._held)

    def _compiled_before(self, pass_: Pass, cells: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """The cells of a pass that are not journaled yet, and the canary's, which comes last."""
        left = self._left(pass_, cells)
        of_canary = canary.PASS.cells(self.plan, dict)
        for case_id, names in self._left(canary.PASS, of_canary).items():
            left[case_id] = list(dict.fromkeys([*left.get(case_id, ()), *names]))
        return left

    def _left(self, pass_: Pass, cells: Mapping[str, list[str]]) -> dict[str, list[str]]:
        done = self.journal.done(pass_.name)
        return {case_id: names for case_id, names in cells.items() if case_id not in done}

    def _step(self, step: Step, *, shown: bool) -> None:
        self.journal.busy_with(step.phase, step.implementation)
        if shown:
            self.view.step(step)

    def _sit(self, described: Described) -> None:
        """Begin the sitting of this process, unless it has begun: whose lines follow."""
        if self.journal.is_sealed:
            return
        assert self.signer is not None
        machine = machine_of(self.plan.run_id, described)
        vouch.same_machine(machine, self.journal.contents)
        self.journal.begin(Sealer(self.signer, self.plan.run_id, self.plan.sha256, machine))

    def _open(self, executor: WorkerExecutor, described: Described) -> None:
        """Record the machine as it is, then its ceilings; journal both before the first case."""
        first = not self.journal.contents.headers
        if self.fit or first:
            # As the machine is before we load it ourselves: clocks, temperature, other processes.
            environment = collect(described, self.plan)
            if first:
                content = f"{environment.model_dump_json(indent=1)}\n".encode()
                whole(self.folder.environment, content)
            if self.fit:
                for problem in doctor.refuse_unfit(environment, results=self.folder.path):
                    self.view.note(f"{problem.severity}: {problem.what} {problem.remedy}")
        try:
            ceilings = executor.calibrate()
        except GroupLost as lost:
            raise EnvironmentRefused(
                f"the device could not be calibrated: {lost.reason}", "run `nsabench doctor`."
            ) from lost
        self.journal.append(
            Header(
                run_id=self.plan.run_id,
                plan_sha256=self.plan.sha256,
                environment_sha256=vouch.digest(self.folder.environment),
                distributions=registry.distributions(),
                started=datetime.now(UTC),
                described=described,
                ceilings=ceilings,
            )
        )
        self.view.run_started(self.plan, described, ceilings)

    def _assess(self) -> Assessed:
        """What the checks make of the first look; it does not change any more after that."""
        if self._assessed is None:
            self._assessed = assess(self.plan, self.journal.contents)
        return self._assessed

    def _judgements_before(self, pass_: Pass) -> Mapping[Key, Judgement]:
        """The verdicts by what earlier passes saw, whether or not this one was begun before, in
        processes of whichever kind."""
        if pass_.name in self._judged_before:
            return self._judged_before[pass_.name]
        names = [one.name for one in PASSES]
        earlier = names[: names.index(pass_.name)]
        contents = self.journal.contents
        entries = [entry for entry in contents.entries if entry.pass_name in earlier]
        judged = self._assess().judgements(Contents(contents.headers, entries))
        return self._judged_before.setdefault(pass_.name, judged)
