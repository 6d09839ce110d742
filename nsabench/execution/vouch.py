"""May this process go on with a run? Only with what its signer and its machine have measured."""

from __future__ import annotations

import hashlib
from pathlib import Path

from nsabench import bounds
from nsabench.errors import BegunElsewhere, UsageError, VerificationFailed
from nsabench.execution.chain import Origin
from nsabench.execution.folder import RunFolder
from nsabench.model.journal import Contents
from nsabench.model.plan import Plan
from nsabench.signing import Signer, run_keys

START_ANEW = "start a new run here; what others measured is theirs to sign."


def same_signer(
    folder: RunFolder, origin: Origin | None, plan: Plan, named: Signer | None
) -> Signer:
    """The signer in whose name all that is journaled was measured.

    named: the lasting one, if there is one; else the key that was kept for the run. Raises
    `VerificationFailed` when it was measured in the name of another one, or of nobody, and
    `UsageError` when nothing was measured yet.
    """
    if origin is None and folder.journal.stat().st_size == 0:
        raise UsageError(
            f"{folder.journal} holds nothing to go on with, and nobody vouches for the plan",
            "start a new run.",
        )
    if origin is None:
        raise VerificationFailed(
            f"{folder.journal} does not say who measured it: signing it would vouch for what "
            f"anybody may have written",
            START_ANEW,
        )
    signer = named or run_keys.kept(plan.run_id)
    if signer is not None and (signer.keyid, signer.ephemeral) == (origin.keyid, origin.ephemeral):
        return signer
    if origin.ephemeral:
        remedy = (
            "it was begun without a lasting key and goes on only where it was begun, by whom it "
            "was, and without one (unset NSABENCH_SIGNING_KEY and "
            f"NSABENCH_SIGNING_KEY_FILE); or {START_ANEW}"
        )
    else:
        remedy = f"name that key as for the run's start; or {START_ANEW}"
    raise VerificationFailed(
        f"{folder.journal} was measured in the name of the key {origin.keyid}, which is not "
        f"{'the one named now' if named else 'kept here'}",
        remedy,
    )


def same_machine(machine: str, contents: Contents) -> None:
    """Raises `BegunElsewhere` when an earlier sitting was on another machine."""
    for sitting in contents.sittings:
        if sitting.machine != machine:
            raise BegunElsewhere(
                "this run was begun on another machine, or on another device of this one",
                "go on where it was begun, with the same CUDA_VISIBLE_DEVICES; or start a new run.",
            )


def same_environment(folder: RunFolder, contents: Contents) -> None:
    """Raises `VerificationFailed` when environment.json is not what the journal says it was."""
    now = digest(folder.environment)
    if any(header.environment_sha256 not in ("", now) for header in contents.headers):
        raise VerificationFailed(
            f"{folder.environment} was changed since the run was begun",
            "restore it, or start a new run.",
        )


def digest(path: Path) -> str:
    """The sha256 of a file, empty where there is none."""
    try:
        with bounds.opened(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, bounds.OutOfBounds):
        return ""
