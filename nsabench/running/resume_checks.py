"""Check that this process may resume a run: with the same signer, machine and software."""

from __future__ import annotations

import hashlib
from pathlib import Path

from nsabench import reading, registry
from nsabench.errors import BegunElsewhere, UsageError, VerificationFailed
from nsabench.model.description import Described
from nsabench.model.log import Log
from nsabench.running.folder import RunFolder
from nsabench.running.seals import Origin
from nsabench.signing import Signer
from nsabench.signing.signer import RUN_KEY, read_run_key

START_ANEW = "start a new run here; what others measured is theirs to sign."


def find_signer(folder: RunFolder, origin: Origin | None, named: Signer | None) -> Signer:
    """Return the named signer, else the run key. Raises `VerificationFailed` if it did not sign."""
    if origin is None:
        raise UsageError(
            f"{folder.log} is empty, and no key signed the plan",
            "name the matrices, too: the run is then started again in this folder.",
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


def refuse_other_machine(machine: str, log: Log) -> None:
    """Raise `BegunElsewhere` if an earlier session was on another machine."""
    if any(session.machine != machine for session in log.sessions):
        raise BegunElsewhere(
            "this run was begun on another machine, or on another device of this one",
            "go on where it was begun, with the same CUDA_VISIBLE_DEVICES; or start a new run.",
        )


def refuse_other_software(now: Described, log: Log) -> None:
    """Raise `UsageError` if the run was begun on another device or with other versions."""
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


def refuse_changed_environment(folder: RunFolder, log: Log) -> None:
    """Raise `VerificationFailed` if environment.json is not as the log says."""
    now = digest(folder.environment)
    if any(session.environment_sha256 != now for session in log.sessions):
        raise VerificationFailed(
            f"{folder.environment} was changed since the run was begun",
            "restore it, or start a new run.",
        )


def digest(path: Path) -> str:
    """Return the sha256 of a file, or an empty string."""
    try:
        with reading.opened(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, reading.OutOfBounds):
        return ""
