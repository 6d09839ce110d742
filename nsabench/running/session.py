"""Open a session of a run, always with the same plan, files, signer, machine and software."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

from nsabench import ops, reading, registry
from nsabench.errors import BegunElsewhere, UsageError, VerificationFailed
from nsabench.files import whole
from nsabench.machine import doctor
from nsabench.machine.environment.collect import collect
from nsabench.machine.environment.identity import machine_of
from nsabench.model.description import Described
from nsabench.model.log import Log, Session
from nsabench.model.plan import Plan
from nsabench.running.clients import Note, Worker
from nsabench.running.folder import RunFolder
from nsabench.running.log import LogFile, Origin
from nsabench.signing import Signer
from nsabench.signing.signer import RUN_KEY, make_run_key, read_run_key
from nsabench.verdicts.results import refuse_other_log

START_ANEW = "start a new run here; what others measured is theirs to sign."


def refuse_other_plan(path: Path, begun: Plan, wanted: Plan) -> None:
    if differences := wanted.differences(begun):
        raise UsageError(
            f"{path} holds a run of another plan: {', '.join(differences)} differ",
            "give another folder, or only --resume to continue that run.",
        )


def choose_signer(
    plan: Plan, folder: RunFolder, file: LogFile, named: Signer | None, *, resumed: bool
) -> Signer:
    """Return the signer of a run, and load the op that its plan has from a file.

    Raises `VerificationFailed` or `UsageError` if the folder is not as the run has left it.
    """
    refuse_other_log(plan, file.log)
    if resumed:
        signer = _find_signer(folder, file.origin, named)
        now = digest(folder.environment)
        if any(session.environment_sha256 != now for session in file.log.sessions):
            raise VerificationFailed(
                f"{folder.environment} was changed since the run was begun",
                "restore it, or start a new run.",
            )
    else:
        signer = named or make_run_key(folder.path)
    if not ops.has_op_of(plan):
        # Not before the signature was checked: a plan without one may name any file.
        ops.load_file(Path(plan.ops), plan.ops_sha256)
    return signer


def _find_signer(folder: RunFolder, origin: Origin | None, named: Signer | None) -> Signer:
    if origin is None:
        raise UsageError(
            f"{folder.log} is empty, and no key signed the plan",
            "also name the matrices: the run is then started again in this folder.",
        )
    signer = named or read_run_key(folder.path)
    if signer is not None and (signer.keyid, signer.ephemeral) == (origin.keyid, origin.ephemeral):
        return signer
    if origin.ephemeral:
        remedy = (
            f"resume it with {RUN_KEY} in its folder, and with NSABENCH_SIGNING_KEY and "
            f"NSABENCH_SIGNING_KEY_FILE unset; or {START_ANEW}"
        )
    else:
        remedy = f"name that key as for the run's start; or {START_ANEW}"
    raise VerificationFailed(
        f"{folder.log} was measured in the name of the key {origin.keyid}, which is not "
        f"{'the one named now' if named else f'in {folder.path / RUN_KEY}'}",
        remedy,
    )


def open_session(
    plan: Plan, folder: RunFolder, log: Log, worker: Worker, note: Note, *, fit: bool
) -> Session:
    """Describe and calibrate the machine. fit: raise `EnvironmentRefused` on an unfit one.

    Raises `UsageError` or `BegunElsewhere` if earlier sessions were on another one.
    """
    described = worker.describe()
    _refuse_other_software(described, log)
    machine = machine_of(plan.run_id, described)
    if any(session.machine != machine for session in log.sessions):
        raise BegunElsewhere(
            "this run was begun on another machine, or on another device of this one",
            "go on where it was begun, with the same CUDA_VISIBLE_DEVICES; or start a new run.",
        )
    if fit or not log.sessions:
        # Before this run itself changes clocks, temperature and processes.
        environment = collect(described, plan)
        if not log.sessions:
            content = f"{environment.model_dump_json(indent=1)}\n".encode()
            whole(folder.environment, content)
        if fit:
            for problem in doctor.refuse_unfit(environment, results=folder.path):
                note(f"{problem.severity}: {problem.what} {problem.remedy}")
    return Session(
        run_id=plan.run_id,
        plan_sha256=plan.sha256,
        environment_sha256=digest(folder.environment),
        started=datetime.now(UTC),
        machine=machine,
        distributions=registry.distributions(),
        described=described,
        ceilings=worker.calibrate(),
    )


def _refuse_other_software(now: Described, log: Log) -> None:
    if not log.sessions:
        return
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


def digest(path: Path) -> str:
    """Return the sha256 of a file, or an empty string."""
    try:
        with reading.opened(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, reading.OutOfBounds):
        return ""
