"""Start, resume and read a run. A resumed run needs the same files, key, software and machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from nsabench import ops, registry
from nsabench.errors import (
    BegunElsewhere,
    Interrupted,
    NsabenchError,
    UsageError,
    VerificationFailed,
)
from nsabench.files import writing
from nsabench.machine.environment.identity import machine_of
from nsabench.model.description import Described
from nsabench.model.log import Log
from nsabench.model.plan import Plan
from nsabench.running.clients import CheckerClient
from nsabench.running.folder import SHARDS, RunFolder
from nsabench.running.log import LogFile, LogOrigin
from nsabench.running.log import read as read_log
from nsabench.running.loop import Loop, View
from nsabench.signing import Signer
from nsabench.signing.signer import RUN_KEY, make_run_key, read_run_key
from nsabench.verdicts.results import Results, assemble, assess, refuse_other_log
from nsabench.verdicts.tables import write_tables

START_ANEW = "start a new run, which is signed with your key."


@dataclass(frozen=True)
class Finished:
    folder: RunFolder
    plan: Plan
    results: Results
    wall_s: float  # since it was started or resumed
    measuring_s: float
    signer: Signer | None = None  # None if the run was only read
    log_end: str = ""  # the digest of the last line of its log


def start(
    plan: Plan, out: Path | None, view: View, *, signer: Signer | None = None, fit: bool = False
) -> Finished:
    """Measure a plan. Without a signer, a key is made. With `fit`, an unfit machine is refused."""
    folder = RunFolder(out or Path("results") / plan.run_id)
    folder.create()
    try:
        with writing(folder.path, f"remove {folder.path} and start again"):
            plan.write(folder.plan)
            if out is None:
                folder.link_latest()
        with folder.resumable():
            return _measure(folder, plan, view, signer, fit=fit, resumed=False)
    except Interrupted:
        if not is_begun(folder.path):
            folder.discard()
            raise KeyboardInterrupt from None
        raise
    except NsabenchError as refused:
        # After an `OSError`, such as a full disk, the run is kept: it can be resumed.
        if not isinstance(refused.__cause__, OSError):
            if not is_begun(folder.path):
                folder.discard()
            # A worker refused, for example because the kernels were edited.
            elif refused.exit_code == UsageError.exit_code:
                refused.folder = str(folder.path)
        raise


def is_begun(path: Path) -> bool:
    folder = RunFolder(path)
    is_merged = (path / SHARDS).exists()
    return is_merged or (folder.log.exists() and bool(read_log(folder.log).sessions))


def resume(path: Path, view: View, *, signer: Signer | None = None, fit: bool = False) -> Finished:
    """Measure what is left. Raises as `refuse_resume` if the run cannot go on here."""
    folder = RunFolder.existing(path)
    plan = Plan.read(folder.plan)
    with folder.resumable():
        return _measure(folder, plan, view, signer, fit=fit, resumed=True)


def read(path: Path) -> Finished:
    """Return a run. Raises `UsageError` if its op is in a file that was not loaded before."""
    folder = RunFolder.existing(path)
    plan = Plan.read(folder.plan)
    if not ops.has_op_of(plan):
        raise UsageError(
            f"{path} is finished and was not changed. Its results can only be shown with the op in "
            f"{Path(plan.ops).name}, a file that is not executed here",
            f"read its reports, or make new ones: `nsabench report {path} "
            f"--ops {Path(plan.ops).name} --out DIR`.",
        )
    results = assemble(plan.run_id, folder.parts())
    return Finished(folder, plan, results, wall_s=0, measuring_s=0)


def _measure(
    folder: RunFolder, plan: Plan, view: View, signer: Signer | None, *, fit: bool, resumed: bool
) -> Finished:
    """Measure what the log does not hold yet, and write the tables."""
    began = time.monotonic()
    view.note(f"results go to {folder.path}")
    ops_file = Path(plan.ops) if plan.ops else None
    with folder.writing(), closing(LogFile(folder.log)) as file:
        with (
            closing(CheckerClient(plan.device, ops_file, plan.ops_sha256)) as checker,
            closing(Loop(plan, file, folder, view, checker, fit=fit)) as loop,
        ):
            if resumed:
                signer = refuse_resume(folder, plan, file, signer, loop.describe)
                folder.logs.mkdir(exist_ok=True)
            else:
                signer = signer or make_run_key(folder.path)
                _load_op(plan)
            file.sign_as(signer)
            measuring_s = loop.run()
        results = assess(plan, file.log).results()
        write_tables(results, plan.run_id, folder.path)
    wall_s = time.monotonic() - began
    return Finished(folder, plan, results, wall_s, measuring_s, signer, file.end)


def refuse_resume(
    folder: RunFolder,
    plan: Plan,
    file: LogFile,
    named: Signer | None,
    describe: Callable[[], Described | None],
) -> Signer:
    """Return the signer. Raises if the files, signer, op, software or machine are not the run's.

    `named` is the signer that the user names. `describe` describes this machine, or returns None if
    nothing is left to measure.
    """
    folder.refuse_foreign()
    refuse_other_log(plan, file.log)
    signer = named or read_run_key(folder.path)
    if file.origin is None:
        raise UsageError(
            f"{folder.log} is empty, so no key signed the plan",
            "also name the matrices, to start the run again in this folder.",
        )
    if signer is None or (signer.keyid, signer.ephemeral) != (
        file.origin.keyid,
        file.origin.ephemeral,
    ):
        raise _explain_other_signer(folder, file.origin, named)
    environment_sha256 = folder.hash_environment()
    if any(session.environment_sha256 != environment_sha256 for session in file.log.sessions):
        raise VerificationFailed(
            f"{folder.environment} was changed since the run was begun",
            "restore it, or start a new run.",
        )
    _load_op(plan)  # after the check of the signature: an unsigned plan may name any file
    described = describe()
    if described is not None:
        _refuse_other_software(described, file.log)
        machine = machine_of(plan.run_id, described)
        if any(session.machine != machine for session in file.log.sessions):
            raise BegunElsewhere(
                "this run was begun on another machine, or on another device of this one",
                "go on where it was begun, with the same CUDA_VISIBLE_DEVICES; or start a new run.",
            )
    return signer


def _explain_other_signer(
    folder: RunFolder, origin: LogOrigin, named: Signer | None
) -> VerificationFailed:
    if origin.ephemeral:
        remedy = (
            f"resume it with {RUN_KEY} in its folder, and with NSABENCH_SIGNING_KEY and "
            f"NSABENCH_SIGNING_KEY_FILE unset; or {START_ANEW}"
        )
    else:
        remedy = f"name its file in NSABENCH_SIGNING_KEY_FILE; or {START_ANEW}"
    return VerificationFailed(
        f"{folder.log} is signed with the key {origin.keyid}, which is not "
        f"{'the one named now' if named else f'in {folder.path / RUN_KEY}'}",
        remedy,
    )


def _refuse_other_software(now: Described, log: Log) -> None:
    first, distributions = log.sessions[0], registry.distributions()
    before, versions = first.described, first.distributions or distributions
    compared = [
        *((name, versions.get(name), distributions.get(name)) for name in versions | distributions),
        ("device", before.device.name, now.device.name),
        ("CPU", before.device.capability, now.device.capability),
        ("torch", before.software.torch, now.software.torch),
        ("triton", before.software.triton, now.software.triton),
        ("the driver's CUDA", before.software.cuda_driver, now.software.cuda_driver),
    ]
    for what, then, today in compared:
        if then != today:
            raise UsageError(
                f"this run was begun on {what} {then} and cannot go on with {today}",
                "start a new run here.",
            )


def _load_op(plan: Plan) -> None:
    if not ops.has_op_of(plan):
        ops.load_file(Path(plan.ops), plan.ops_sha256)
