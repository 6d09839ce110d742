"""A run from end to end: discover, plan, calibrate, measure, and derive the results."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from nsabench import ops, registry
from nsabench.assessment import columns, parquet
from nsabench.assessment.results import Results, assemble, assess, belongs
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.execution import isolated_baselines as apart
from nsabench.execution import journal
from nsabench.execution import second_look as confirm
from nsabench.execution.folder import RunFolder
from nsabench.execution.journal import Header, Journal
from nsabench.execution.protocol import Step
from nsabench.execution.supervisor import schedule
from nsabench.execution.supervisor.executor import GroupLost, WorkerExecutor
from nsabench.files import whole, writing
from nsabench.machine import doctor
from nsabench.machine.environment.collect import collect
from nsabench.model.description import Described
from nsabench.model.outcome import Ceilings
from nsabench.model.plan import Device, Plan
from nsabench.planning import resolve


class View(schedule.Progress, Protocol):
    """Where a run shows what it does."""

    def run_started(self, plan: Plan, described: Described, ceilings: Ceilings) -> None: ...

    def step(self, step: Step) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Finished:
    """A complete run. wall_s and measuring_s: of this time, if it was resumed."""

    folder: RunFolder
    plan: Plan
    results: Results
    wall_s: float
    measuring_s: float


def choose_device(asked: str) -> Device:
    """`auto` is cuda where the driver shows a device. The supervisor does not import torch."""
    if asked == "cuda" or asked == "cpu":
        return asked  # type: ignore[return-value]
    try:
        seen = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, timeout=30, check=True, text=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return "cpu"
    return "cuda" if "GPU" in seen else "cpu"


def make_plan(
    matrices: Sequence[str],
    device: Device,
    kernels: Path | None,
    shard: str = "1/1",
    ops_file: Path | None = None,
) -> Plan:
    """Load the matrices and resolve them against what is installed.

    Raises `UsageError` for a bad matrix, a broken implementation or a broken op, before anything is
    measured.
    """
    # A run may be resumed from another folder.
    kernels = kernels.absolute() if kernels is not None else None
    ops_file = ops_file.absolute() if ops_file is not None else None
    if ops_file is not None:
        columns.refuse_sizes(ops.load_file(ops_file))
    loaded = resolve.load_matrices(matrices or resolve.default_matrices(device))
    sources = registry.sources(kernels, ops_file)
    worker = WorkerExecutor(device, kernels, sources=sources, ops_file=ops_file)
    with closing(worker) as executor:
        try:
            found = executor.discover()
        except GroupLost as lost:
            raise UsageError(
                f"the implementations could not be imported: {lost.reason}",
                "import the kernels file in a Python of its own to see why.",
            ) from None
    return resolve.resolve(
        loaded,
        found,
        device=device,
        kernels=kernels,
        ops_file=ops_file,
        sources=sources,
        shard=shard,
    )


def start(plan: Plan, out: Path | None, view: View, *, fit: bool = False) -> Finished:
    """Run a plan into a new folder.

    fit: look at the machine first; raises `EnvironmentRefused` when measuring on it is pointless.
    """
    folder = RunFolder(out or Path("results") / plan.run_id)
    folder.create()
    with writing(folder.path, f"remove {folder.path} and start again"):
        plan.write(folder.plan)
    return _measure(folder, plan, view, fit)


def resume(path: Path, view: View, *, fit: bool = False) -> Finished:
    """Go on with a run that was interrupted; cases that are journaled are not run again."""
    folder = RunFolder.existing(path)
    with folder.writing():
        folder.logs.mkdir(exist_ok=True)
    return _measure(folder, _read_plan(folder), view, fit)


def _read_plan(folder: RunFolder) -> Plan:
    """The plan of a run that goes on, once its op from outside, if it has one, is there."""
    plan = Plan.read(folder.plan)
    if plan.ops:
        ops.load_file(Path(plan.ops), plan.ops_sha256)
    return plan


def finished(path: Path) -> Finished:
    """A run as it lies there; nothing is measured."""
    folder = RunFolder.existing(path)
    plan = _read_plan(folder)
    results = assemble(plan, journal.read(folder.journal))
    return Finished(folder, plan, results, wall_s=0, measuring_s=0)


def _measure(folder: RunFolder, plan: Plan, view: View, fit: bool) -> Finished:
    began = time.monotonic()
    view.note(f"results go to {folder.path}")
    kernels = Path(plan.kernels) if plan.kernels else None
    sources = plan.sources or None  # none: a plan made before they were recorded
    ops_file = Path(plan.ops) if plan.ops else None
    executor_of = partial(WorkerExecutor, plan.device, kernels, sources=sources, ops_file=ops_file)
    measured_before = 0.0
    with folder.writing():
        with closing(Journal(folder.journal)) as records:
            contents = journal.read(folder.journal)
            belongs(plan, contents)
            measured_before = contents.measuring_s
            if any(planned.id not in records.done for planned in plan.cases):
                executor = executor_of(on_step=view.step)
                with closing(executor):
                    _open(folder, plan, executor, records, view, fit)
                    schedule.run(plan, executor, records, folder.logs, view)
            contents = journal.read(folder.journal)
            assessed = assess(plan, contents)
            doubtful = confirm.doubtful(assessed.first_look)
            with closing(executor_of()) as fresh:
                if doubtful.keys() - records.confirmed:
                    _same_machine(fresh, contents.headers)
                confirm.confirm(plan, doubtful, fresh, records, view.note)
            won = apart.wanted(plan, assessed.judgements(journal.read(folder.journal)))
            with closing(apart.start_worker(plan)) as alone:
                if won.keys() - records.apart:
                    _same_machine(alone, contents.headers)
                apart.measure(plan, won, alone, records, view.note)
        contents = journal.read(folder.journal)
        results = assessed.results(contents)
        parquet.write(results, plan.run_id, folder.path)
    return Finished(
        folder,
        plan,
        results,
        time.monotonic() - began,
        contents.measuring_s - measured_before,
    )


def _open(
    folder: RunFolder,
    plan: Plan,
    executor: WorkerExecutor,
    records: Journal,
    view: View,
    fit: bool,
) -> None:
    """Describe and calibrate the device, and journal that before the first case."""
    earlier = journal.read(folder.journal).headers
    described = _same_machine(executor, earlier)
    if fit or not earlier:
        # As the machine is before we load it ourselves: clocks, temperature, other processes.
        environment = collect(described, plan)
        if not earlier:
            whole(folder.environment, f"{environment.model_dump_json(indent=1)}\n".encode())
        if fit:
            for problem in doctor.refuse_unfit(environment, results=folder.path):
                view.note(f"{problem.severity}: {problem.what} {problem.remedy}")
    try:
        ceilings = executor.calibrate()
    except GroupLost as lost:
        raise EnvironmentRefused(
            f"the device could not be calibrated: {lost.reason}", "run `nsabench doctor`."
        ) from lost
    records.append(
        Header(
            run_id=plan.run_id,
            plan_sha256=plan.sha256,
            distributions=registry.distributions(),
            started=datetime.now(UTC),
            described=described,
            ceilings=ceilings,
        )
    )
    view.run_started(plan, described, ceilings)


def _same_machine(executor: WorkerExecutor, earlier: Sequence[Header]) -> Described:
    """Describe the machine of `executor`. Raises `UsageError` when the run was begun on another."""
    try:
        described = executor.describe()
    except GroupLost as lost:
        raise EnvironmentRefused(
            f"the device could not be described: {lost.reason}", "run `nsabench doctor`."
        ) from lost
    if not earlier:
        return described
    before, distributions = earlier[0].described, registry.distributions()
    was = earlier[0].distributions or distributions
    for what, then, now in (
        *((name, was.get(name), distributions.get(name)) for name in {**was, **distributions}),
        ("device", before.device.get("name"), described.device.get("name")),
        ("CPU", before.device.get("capability"), described.device.get("capability")),
        ("torch", before.software.get("torch"), described.software.get("torch")),
        ("triton", before.software.get("triton"), described.software.get("triton")),
        (
            "the driver's CUDA",
            before.software.get("cuda_driver"),
            described.software.get("cuda_driver"),
        ),
    ):
        if then != now:
            raise UsageError(
                f"this run was begun on {what} {then} and cannot go on with {now}",
                "start a new run here.",
            )
    return described
