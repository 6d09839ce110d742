"""Who signs here: a key from a file or a variable, a program, or a key that is made for a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench.errors import UsageError
from nsabench.signing import keys, secrecy
from nsabench.signing.command import CommandKey, PrivateKey

COMMAND = "NSABENCH_SIGNER"
KEY_FILE = "NSABENCH_SIGNING_KEY_FILE"
KEY = "NSABENCH_SIGNING_KEY"
PASSPHRASE_FILE = "NSABENCH_SIGNING_KEY_PASSPHRASE_FILE"


@dataclass(frozen=True)
class Signer:
    """A private key. `ephemeral`: made for one run and forgotten after it.

    exposed: how code that runs with the rights of this process could get at the key, a sentence
    each; empty where no way is known.
    """

    key: PrivateKey
    ephemeral: bool
    exposed: tuple[str, ...] = ()

    @property
    def keyid(self) -> str:
        return keys.keyid_of(self.key.public_key())


def load_signer(variables: Mapping[str, str] | None = None) -> Signer:
    """`named_signer`, or an ephemeral one where none is named."""
    return named_signer(variables) or Signer(Ed25519PrivateKey.generate(), ephemeral=True)


def named_signer(variables: Mapping[str, str] | None = None) -> Signer | None:
    """The signer that the environment variables name, if they name one.

    Raises `UsageError` when they name one that cannot be used, and `EnvironmentRefused` when that
    is a program.
    """
    variables = secrecy.variables() if variables is None else variables
    named = [name for name in (COMMAND, KEY_FILE, KEY) if variables.get(name)]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} are both set", "unset one of them.")
    if not named:
        return None
    value = variables[named[0]]
    if named == [COMMAND]:
        return Signer(CommandKey(value), ephemeral=False)
    passphrase_file = variables.get(PASSPHRASE_FILE)
    passphrase = read_passphrase(Path(passphrase_file)) if passphrase_file else None
    pem = keys.read(Path(value), KEY_FILE) if named == [KEY_FILE] else value.encode()
    key = keys.private_key(pem, named[0], passphrase)
    opened_by = passphrase_file if b"ENCRYPTED" in pem else None
    return Signer(key, False, tuple(_exposures(named[0], value, opened_by)))


def read_passphrase(path: Path) -> bytes:
    """The first line of a file. Raises `UsageError` when there is none."""
    lines = keys.read(path, PASSPHRASE_FILE).splitlines()
    if not lines or not lines[0]:
        raise UsageError(f"{path} holds no passphrase", "write it into its first line.")
    return lines[0]


def _exposures(name: str, value: str, passphrase_file: str | None) -> list[str]:
    """passphrase_file: None where the key is not encrypted."""
    if passphrase_file is not None and not _can_be_read_again(passphrase_file):
        return []  # whoever finds the key cannot open it
    opened = f" and its passphrase in {passphrase_file}" if passphrase_file else ""
    if name == KEY_FILE:
        return [f"{value}{opened} can be read"] if _can_be_read_again(value) else []
    return [
        f"the environment of process {pid}, which started this one, holds the key{opened}"
        for pid in secrecy.ancestors_with(KEY)
    ]


def _can_be_read_again(path: str) -> bool:
    """Whether it is a file, as opposed to a pipe that was read to its end."""
    return Path(path).is_file() and os.access(path, os.R_OK)
