"""A run from end to end: discover, plan, calibrate, measure, and derive the results."""

from __future__ import annotations

import errno
import hashlib
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from nsabench import confirm, journal
from nsabench import plan as planning
from nsabench.environment.collect import collect
from nsabench.errors import EnvironmentRefused, NsabenchError, UsageError
from nsabench.journal import Header, Journal
from nsabench.messages import Ceilings, Described, Step
from nsabench.plan import Device, Plan
from nsabench.results import parquet
from nsabench.results.assemble import Results, assemble
from nsabench.run_folder import RunFolder
from nsabench.supervisor import schedule
from nsabench.supervisor.executor import GroupLost, WorkerExecutor


class View(schedule.Progress, Protocol):
    """Where a run shows what it does."""

    def run_started(self, plan: Plan, described: Described, ceilings: Ceilings) -> None: ...

    def step(self, step: Step) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Finished:
    """A complete run."""

    folder: RunFolder
    plan: Plan
    results: Results
    ceilings: Ceilings
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
    matrices: Sequence[str], device: Device, kernels: Path | None, shard: str = "1/1"
) -> Plan:
    """Load the matrices and resolve them against what is installed.

    Raises `UsageError` for a bad matrix or a broken implementation, before anything is measured.
    """
    loaded = planning.load_matrices(matrices or planning.default_matrices(device))
    with closing(WorkerExecutor(device, kernels)) as executor:
        try:
            found = executor.discover()
        except GroupLost as lost:
            raise UsageError(
                f"the implementations could not be imported: {lost.reason}",
                "import the kernels file in a Python of its own to see why.",
            ) from None
    return planning.resolve(
        loaded,
        found,
        device=device,
        kernels=kernels,
        shard=shard,
    )


def start(plan: Plan, out: Path | None, view: View) -> Finished:
    """Run a plan into a new folder."""
    folder = RunFolder(out or Path("results") / plan.run_id)
    folder.create()
    plan.write(folder.plan)
    return _measure(folder, plan, view)


def resume(path: Path, view: View) -> Finished:
    """Go on with a run that was interrupted; cases that are journaled are not run again."""
    folder = RunFolder.existing(path)
    folder.logs.mkdir(exist_ok=True)
    plan = Plan.read(folder.plan)
    if plan.kernels and _sha256(Path(plan.kernels)) != plan.kernels_sha256:
        raise UsageError(
            f"{plan.kernels} is not what it was when the run began",
            "start a new run, or go on from the folder where the run was started.",
        )
    return _measure(folder, plan, view)


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _measure(folder: RunFolder, plan: Plan, view: View) -> Finished:
    began = time.monotonic()
    kernels = Path(plan.kernels) if plan.kernels else None
    try:
        with closing(Journal(folder.journal)) as records:
            if any(planned.id not in records.done for planned in plan.cases):
                with closing(WorkerExecutor(plan.device, kernels, on_step=view.step)) as executor:
                    _open(folder, plan, executor, records, view)
                    schedule.run(plan, executor, records, folder.logs, view)
            doubtful = confirm.doubtful(assemble(plan, journal.read(folder.journal)))
            with closing(WorkerExecutor(plan.device, kernels)) as fresh:
                confirm.confirm(plan, doubtful, fresh, records, view.note)
        contents = journal.read(folder.journal)
        results = assemble(plan, contents)
        parquet.write(results, plan.run_id, folder.path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        raise NsabenchError(
            f"{folder.path} cannot be written: {error.strerror}",
            f"make room, then go on with --resume {folder.path}.",
        ) from error
    return Finished(
        folder,
        plan,
        results,
        contents.headers[0].ceilings,
        time.monotonic() - began,
        sum(entry.measuring_s for entry in contents.entries),
    )


def _open(
    folder: RunFolder, plan: Plan, executor: WorkerExecutor, records: Journal, view: View
) -> None:
    """Describe and calibrate the device, and journal that before the first case."""
    try:
        described = executor.describe()
        ceilings = executor.calibrate()
    except GroupLost as lost:
        raise EnvironmentRefused(
            f"the device could not be calibrated: {lost.reason}", "run `nsabench doctor`."
        ) from lost
    earlier = journal.read(folder.journal).headers
    if earlier:
        before = earlier[0].described
        for what, then, now in (
            ("device", before.device.get("name"), described.device.get("name")),
            ("torch", before.software.get("torch"), described.software.get("torch")),
            ("triton", before.software.get("triton"), described.software.get("triton")),
        ):
            if then != now:
                raise UsageError(
                    f"this run was begun on {what} {then} and cannot go on with {now}",
                    "start a new run here.",
                )
    else:
        # As the machine is before the first case: clocks, temperature, other processes.
        _write_environment(folder, plan, described)
    records.append(
        Header(
            run_id=plan.run_id,
            started=datetime.now(UTC),
            described=described,
            ceilings=ceilings,
        )
    )
    view.run_started(plan, described, ceilings)


def _write_environment(folder: RunFolder, plan: Plan, described: Described) -> None:
    text = collect(described, plan).model_dump_json(indent=1)
    temporary = folder.environment.with_suffix(".tmp")
    temporary.write_text(text + "\n")
    temporary.replace(folder.environment)
