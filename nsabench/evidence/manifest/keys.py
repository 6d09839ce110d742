"""Ed25519 keys: made, read, named. A key comes from a file or a variable, never from a command."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)

from nsabench.errors import UsageError

KEY_FILE = "NSABENCH_SIGNING_KEY_FILE"
KEY = "NSABENCH_SIGNING_KEY"
PASSPHRASE_FILE = "NSABENCH_SIGNING_KEY_PASSPHRASE_FILE"
TRUSTED = "NSABENCH_TRUSTED_KEYS"
_MAKE_ONE = "make one with `nsabench key generate`."


@dataclass(frozen=True)
class Signer:
    """A private key. `ephemeral`: made for one run and forgotten after it."""

    key: Ed25519PrivateKey
    ephemeral: bool

    @property
    def keyid(self) -> str:
        return keyid_of(self.key.public_key())


def load_signer(variables: Mapping[str, str] | None = None) -> Signer:
    """The key that the environment variables name, or an ephemeral one where they name none.

    Raises `UsageError` when they name one that cannot be used.
    """
    variables = os.environ if variables is None else variables
    path, text = variables.get(KEY_FILE), variables.get(KEY)
    if path and text:
        raise UsageError(f"{KEY_FILE} and {KEY} are both set", "unset one of them.")
    if not path and not text:
        return Signer(Ed25519PrivateKey.generate(), ephemeral=True)
    named = variables.get(PASSPHRASE_FILE)
    passphrase = read_passphrase(Path(named)) if named else None
    if path:
        return Signer(private_key(_read(Path(path), KEY_FILE), KEY_FILE, passphrase), False)
    assert text is not None
    return Signer(private_key(text.encode(), KEY, passphrase), False)


def read_passphrase(path: Path) -> bytes:
    """The first line of a file. Raises `UsageError` when there is none."""
    lines = _read(path, PASSPHRASE_FILE).splitlines()
    if not lines or not lines[0]:
        raise UsageError(f"{path} holds no passphrase", "write it into its first line.")
    return lines[0]


def private_key(pem: bytes, source: str, passphrase: bytes | None) -> Ed25519PrivateKey:
    """Raises `UsageError` when `pem` is no Ed25519 key or the passphrase does not open it."""
    try:
        key = load_pem_private_key(pem, passphrase)
    except TypeError:
        if passphrase is None:
            raise UsageError(
                f"the key in {source} is encrypted",
                f"name the file that holds its passphrase in {PASSPHRASE_FILE}.",
            ) from None
        key = load_pem_private_key(pem, None)  # not encrypted: the passphrase is for another key
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(
            f"the key in {source} cannot be read, or its passphrase is another one",
            f"check {PASSPHRASE_FILE}, or {_MAKE_ONE}",
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"the key in {source} is not an Ed25519 key", _MAKE_ONE)
    return key


def generate(path: Path, passphrase: bytes) -> Ed25519PublicKey:
    """Write an encrypted PKCS #8 key (mode 0600) to `path`, its public half to `path`.pub.

    Raises `UsageError` when either is there already or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(passphrase)
    )
    _create(path, private, 0o600)
    _create(public_path(path), public_pem(key.public_key()), 0o644)
    return key.public_key()


def public_path(path: Path) -> Path:
    return path.with_name(path.name + ".pub")


def public_pem(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def public_der(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def keyid_of(key: Ed25519PublicKey) -> str:
    """The SHA-256 of the key's DER form (SubjectPublicKeyInfo), in hex."""
    return hashlib.sha256(public_der(key)).hexdigest()


def public_key_of_der(der: bytes) -> Ed25519PublicKey:
    """Raises `ValueError` when `der` is no Ed25519 public key, or another form of one."""
    try:
        key = load_der_public_key(der)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from None
    if not isinstance(key, Ed25519PublicKey) or public_der(key) != der:
        raise ValueError("not the DER form of an Ed25519 public key")
    return key


def read_public(path: Path) -> Ed25519PublicKey:
    """Raises `UsageError` when `path` holds no Ed25519 public key in PEM."""
    try:
        key = load_pem_public_key(_read(path, "the public key"))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(
            f"{path} holds no Ed25519 public key",
            "give the .pub file that `nsabench key generate` wrote.",
        )
    return key


def trusted_keyids(
    files: tuple[Path, ...], variables: Mapping[str, str] | None = None
) -> frozenset[str]:
    """Ids of the keys in `files` and in the files and folders that NSABENCH_TRUSTED_KEYS lists.

    Raises `UsageError` when one of them holds no key.
    """
    variables = os.environ if variables is None else variables
    paths = list(files)
    for part in filter(None, variables.get(TRUSTED, "").split(os.pathsep)):
        path = Path(part)
        paths += sorted(path.glob("*.pub")) if path.is_dir() else [path]
    return frozenset(keyid_of(read_public(path)) for path in paths)


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{what}: {path} cannot be read: {error.strerror}", "name a file that can."
        ) from None


def _create(path: Path, data: bytes, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # O_EXCL with the mode: never over another key, never readable by others in between.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except FileExistsError:
        raise UsageError(f"{path} is there already", "give another name with --out.") from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", "give another place with --out."
        ) from None
