"""Keys of runs for which no lasting key is named: kept until the run is signed, then forgotten.

They lie in the user's state folder and not in the run's, since whoever is handed an unfinished run
is not to be able to go on with it in the name of the one who began it. Code that runs as this user
can read them: what an ephemeral key signs says by whom in no case.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench.errors import UsageError
from nsabench.signing import keys
from nsabench.signing.signer import Signer

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}")  # it becomes part of a path


def folder() -> Path:
    """`$XDG_STATE_HOME/nsabench/run-keys`, by default below `~/.local/state`."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "nsabench" / "run-keys"  # as it is where there is no home


def begin(run_id: str) -> tuple[Signer, str]:
    """A key for a run that begins, kept for its resumption; and why it is not, if it is not."""
    path = _path(run_id)
    if path.exists():  # begun, and ended before anything was measured
        return _read(path), ""
    key = Ed25519PrivateKey.generate()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        keys.create((path, keys.private_pem(key), 0o600))
    except (OSError, UsageError) as error:
        return Signer(key, ephemeral=True), str(error)
    return Signer(key, ephemeral=True), ""


def kept(run_id: str) -> Signer | None:
    """The key of a run that was begun here and is not signed yet."""
    if not _RUN_ID.fullmatch(run_id):
        return None
    path = _path(run_id)
    return _read(path) if path.is_file() else None


def forget(run_id: str) -> None:
    """To be called when the run is signed."""
    _path(run_id).unlink(missing_ok=True)


def _read(path: Path) -> Signer:
    return Signer(keys.private_key(keys.read(path, "the key of the run"), str(path), None), True)


def _path(run_id: str) -> Path:
    if not _RUN_ID.fullmatch(run_id):
        raise UsageError(f"{run_id[:100]!r} is no id of a run", "give the folder nsabench made.")
    return folder() / f"{run_id}.key"
