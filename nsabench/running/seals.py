"""Seal the lines of a log: each is signed, together with the line before, as it is measured.

So only the signer of the run can add, change or move a line. Lines can be cut off at the end. The
format: docs/reference/log.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nsabench.errors import VerificationFailed
from nsabench.model.log import Entry, Line, LogSigner, Session
from nsabench.signing import Signer
from nsabench.signing.keys import keyid_of, public_der, public_key_of_der

# Signed bytes begin with it, so that no signature passes for another kind.
_SEALED = b"nsabench log line v3\n"
_SEAL = re.compile(rb',"seal":"([A-Za-z0-9+/]{86}==)"\}')
_SEAL_BYTES = 99


@dataclass(frozen=True)
class Origin:
    """The signer of a log. keyid: of its key. end: the `digest` of the last line."""

    keyid: str
    ephemeral: bool
    sessions: int
    lines: int
    end: str

    def __str__(self) -> str:
        sessions = f"{self.sessions} session{'s'[: self.sessions != 1]}"
        return f"{self.lines} lines of {sessions}, signed with the key {self.keyid}"


def seal(entry: Entry, previous: str, signer: Signer) -> bytes:
    line = Line(previous=previous, entry=entry)
    if isinstance(entry, Session):
        public_key = base64.b64encode(public_der(signer.key.public_key())).decode()
        line.signer = LogSigner(
            keyid=signer.keyid, public_key=public_key, ephemeral=signer.ephemeral
        )
    content = line.model_dump_json(exclude={"seal"}, exclude_none=True).encode()
    sealed = base64.b64encode(signer.key.sign(_SEALED + content))
    return content[:-1] + b',"seal":"' + sealed + b'"}'


def digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def find_origin(lines: Iterable[tuple[bytes, Line]]) -> Origin | None:
    """Return the one signer of lines, if any. Raises `VerificationFailed` for a bad line."""
    previous, sessions, number = "", 0, 0
    signer: LogSigner | None = None
    key: Ed25519PublicKey | None = None
    for number, (content, line) in enumerate(lines, 1):
        if isinstance(line.entry, Session):
            if line.signer is not None and signer not in (None, line.signer):
                raise VerificationFailed(f"line {number} is signed with another key than line 1")
            signer, sessions = line.signer, sessions + 1
            key = _find_key(signer) if signer is not None else None
        if key is None:
            raise VerificationFailed(f"line {number} does not say who measured")
        if line.previous != previous:
            raise VerificationFailed(f"line {number} does not follow the line before it")
        _check_seal(content, key, number)
        previous = digest(content)
    if signer is None:
        return None
    return Origin(signer.keyid, signer.ephemeral, sessions, number, previous)


def _find_key(signer: LogSigner) -> Ed25519PublicKey:
    try:
        key = public_key_of_der(base64.b64decode(signer.public_key, validate=True))
    except (binascii.Error, ValueError) as error:
        raise VerificationFailed(f"the log names no key: {error}") from None
    if keyid_of(key) != signer.keyid:
        raise VerificationFailed("the log names another key than it holds")
    return key


def _check_seal(content: bytes, key: Ed25519PublicKey, number: int) -> None:
    seal = _SEAL.fullmatch(content, max(len(content) - _SEAL_BYTES, 0))
    try:
        if seal is None:
            raise InvalidSignature
        key.verify(
            base64.b64decode(seal[1], validate=True), _SEALED + content[: seal.start()] + b"}"
        )
    except InvalidSignature:
        raise VerificationFailed(f"line {number} is not what was measured") from None
