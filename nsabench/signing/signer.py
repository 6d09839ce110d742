"""The key that signs a run: named by the user, or made for one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench.errors import UsageError
from nsabench.signing import keys, secrecy

KEY_FILE = "NSABENCH_SIGNING_KEY_FILE"
KEY = "NSABENCH_SIGNING_KEY"
PASSPHRASE_FILE = "NSABENCH_SIGNING_KEY_PASSPHRASE_FILE"
RUN_KEY = "run.key"  # the file of an ephemeral key, in the folder of an unfinished run


@dataclass(frozen=True)
class Signer:
    key: Ed25519PrivateKey
    ephemeral: bool  # made for one run, and deleted after it

    @property
    def keyid(self) -> str:
        return keys.keyid_of(self.key.public_key())


def load_signer(variables: Mapping[str, str] | None = None) -> Signer:
    return named_signer(variables) or Signer(Ed25519PrivateKey.generate(), ephemeral=True)


def named_signer(variables: Mapping[str, str] | None = None) -> Signer | None:
    """Return the signer that the environment names. Raises `UsageError` for an unusable key."""
    variables = secrecy.variables() if variables is None else variables
    named = [name for name in (KEY_FILE, KEY) if variables.get(name)]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} are both set", "unset one of them.")
    if not named:
        return None
    value = variables[named[0]]
    path = Path(value)
    if named == [KEY_FILE] and path.is_file() and path.stat().st_mode & 0o006:
        raise UsageError(
            f"{value} holds a signing key, and every user of this machine may read or write it",
            f"run `chmod 600 {value}`. If others could have read the key, make another one.",
        )
    passphrase_file = variables.get(PASSPHRASE_FILE)
    passphrase = read_passphrase(Path(passphrase_file)) if passphrase_file else None
    pem = keys.read(Path(value), KEY_FILE) if named == [KEY_FILE] else value.encode()
    return Signer(keys.private_key(pem, named[0], passphrase), ephemeral=False)


def read_passphrase(path: Path) -> bytes:
    """Return the first line of a file. Raises `UsageError` if it is empty."""
    lines = keys.read(path, PASSPHRASE_FILE).splitlines()
    if not lines or not lines[0]:
        raise UsageError(f"{path} holds no passphrase", "write it into its first line.")
    return lines[0]


def make_run_key(run: Path) -> Signer:
    """Make an ephemeral key, and keep it in the run folder so that the run can be resumed."""
    key = Ed25519PrivateKey.generate()
    keys.create((run / RUN_KEY, keys.private_pem(key), 0o600))
    return Signer(key, ephemeral=True)


def read_run_key(run: Path) -> Signer | None:
    path = run / RUN_KEY
    if not path.is_file():
        return None
    pem = keys.read(path, "the key of the run")
    return Signer(keys.private_key(pem, str(path), None), ephemeral=True)
