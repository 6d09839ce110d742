"""Make, read and write Ed25519 keys."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
from cryptography.hazmat.primitives.padding import PKCS7
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)

from nsabench.errors import UsageError

ROUNDS = 600_000  # iterations of PBKDF2 with SHA-256 (OWASP, Password Storage Cheat Sheet, 2023)
LEAST_PASSPHRASE = 12  # bytes
# Object identifiers in DER.
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
_PBKDF2 = bytes.fromhex("06092a864886f70d01050c")
_HMAC_SHA256 = bytes.fromhex("300c06082a864886f70d02090500")
_AES256_CBC = bytes.fromhex("060960864801650304012a")
MAKE_ONE = "make a key with `nsabench key generate`."
MOST_BYTES = 1 << 20  # the most bytes of a key file or of a list of keys
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,6})")
_PUBLIC = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


def private_key(pem: bytes, source: str, passphrase: bytes | None) -> Ed25519PrivateKey:
    """Return the key in `pem`. Raises `UsageError` for another kind or a wrong passphrase."""
    try:
        key = load_pem_private_key(pem, passphrase)
    except TypeError:
        if passphrase is None:
            raise UsageError(
                f"the key in {source} is encrypted",
                "set NSABENCH_SIGNING_KEY_PASSPHRASE_FILE to the file that holds its passphrase.",
            ) from None
        key = load_pem_private_key(pem, None)  # not encrypted: the passphrase is for another key
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(
            f"the key in {source} cannot be read, or its passphrase is wrong",
            f"check NSABENCH_SIGNING_KEY_PASSPHRASE_FILE, or {MAKE_ONE}",
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"the key in {source} is not an Ed25519 key", MAKE_ONE)
    return key


def private_pem(key: Ed25519PrivateKey, passphrase: bytes | None = None) -> bytes:
    if not passphrase:
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    # PBES2 (RFC 8018). `BestAvailableEncryption` would use 2,048 rounds only.
    salt, vector = os.urandom(16), os.urandom(16)
    derived = PBKDF2HMAC(SHA256(), 32, salt, ROUNDS).derive(passphrase)
    pad, encrypt = PKCS7(128).padder(), Cipher(AES(derived), CBC(vector)).encryptor()
    plain = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    secret = encrypt.update(pad.update(plain) + pad.finalize()) + encrypt.finalize()
    rounds = _der(0x02, ROUNDS.to_bytes(3, "big"))
    derivation = _der(0x30, _PBKDF2, _der(0x30, _der(0x04, salt), rounds, _HMAC_SHA256))
    cipher = _der(0x30, _AES256_CBC, _der(0x04, vector))
    scheme = _der(0x30, _PBES2, _der(0x30, derivation, cipher))
    body = base64.encodebytes(_der(0x30, scheme, _der(0x04, secret)))
    kind = b"ENCRYPTED PRIVATE KEY-----\n"
    return b"-----BEGIN " + kind + body + b"-----END " + kind


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    return bytes([tag, size] if size < 128 else [tag, 0x81, size]) + content


def generate(path: Path, passphrase: bytes) -> Ed25519PublicKey:
    """Write an encrypted private key to `path`, and its public half to `path`.pub."""
    if len(passphrase) < LEAST_PASSPHRASE:
        raise UsageError(
            f"the passphrase has {len(passphrase)} bytes, so it can be guessed",
            f"take one of {LEAST_PASSPHRASE} bytes or more: five random words, for example.",
        )
    key = Ed25519PrivateKey.generate()
    create(
        (path, private_pem(key, passphrase), 0o600),
        (public_path(path), public_pem(key.public_key()), 0o644),
    )
    return key.public_key()


def create(*wanted: tuple[Path, bytes, int]) -> None:
    """Write new files (path, content, mode). If one exists or cannot be written, none is made."""
    made: list[Path] = []
    try:
        for path, _, _ in wanted:
            if os.path.lexists(path):
                raise FileExistsError(str(path))
        for path, data, mode in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            # O_EXCL never overwrites a key, and other users cannot read the new key at any moment.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            made.append(path)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
    except OSError as error:
        for path_made in made:
            path_made.unlink(missing_ok=True)
        if isinstance(error, FileExistsError) and os.path.lexists(path):
            raise UsageError(f"{path} is there already", "give another name with --out.") from None
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", "give another place with --out."
        ) from None


def public_path(path: Path) -> Path:
    return path.with_name(path.name + ".pub")


def public_pem(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def public_der(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def keyid_of(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 of the key's DER form (SubjectPublicKeyInfo), in hex."""
    return hashlib.sha256(public_der(key)).hexdigest()


def public_key_of_der(der: bytes) -> Ed25519PublicKey:
    """Raise `ValueError` if `der` is not the DER form of an Ed25519 public key."""
    try:
        key = load_der_public_key(der)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from None
    if not isinstance(key, Ed25519PublicKey) or public_der(key) != der:
        raise ValueError("not the DER form of an Ed25519 public key")
    return key


def read_publics(path: Path) -> list[Ed25519PublicKey]:
    """Return all keys of a file, which must contain only Ed25519 public keys in PEM."""
    content = read(path, "the public key")
    found: list[Ed25519PublicKey] = []
    with suppress(ValueError, UnsupportedAlgorithm):
        loaded = [load_pem_public_key(pem) for pem in _PUBLIC.findall(content)]
        found = [key for key in loaded if isinstance(key, Ed25519PublicKey)]
    if not found or len(found) != content.count(b"-----BEGIN"):
        raise UsageError(
            f"{path} must contain Ed25519 public keys and nothing else",
            "give the .pub file that `nsabench key generate` wrote, or several in one file.",
        )
    return found


def read(path: Path, what: str) -> bytes:
    """Read a file, or the rest of an open descriptor (`/dev/fd/3`), and close it."""
    descriptor = _DESCRIPTOR.fullmatch(str(path))
    try:
        with path.open("rb") if descriptor is None else os.fdopen(int(descriptor[1]), "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{what}: {path} cannot be read: {error.strerror}", "give a readable file."
        ) from None
    if len(content) > MOST_BYTES:
        raise UsageError(f"{what}: {path} has more than 1 MiB", "name the right file.")
    return content
