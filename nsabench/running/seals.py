"""Seal the lines of a log: each is signed, together with the line before, as it is measured.

A session (one process) makes a key that it never writes to a file. The signer of the run certifies
that key in the first line of the session, and the key seals every line. So only the signer can add,
change or move a line. Lines can be cut off at the end. The format: docs/reference/log.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from nsabench.errors import VerificationFailed
from nsabench.model.log import Certificate, Entry, Line, Session
from nsabench.signing import Signer
from nsabench.signing.keys import keyid_of, public_der, public_key_of_der

# Signed bytes begin with one of these, so that no signature passes for another kind.
_CERTIFIED = "nsabench session v2"
_SEALED = b"nsabench log line v2\n"
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


class Sealer:
    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._key = Ed25519PrivateKey.generate()

    def seal(self, entry: Entry, previous: str) -> bytes:
        line = Line(previous=previous, entry=entry)
        if isinstance(entry, Session):
            line.certificate = self._certificate(entry, previous)
        content = line.model_dump_json(exclude={"seal"}, exclude_none=True).encode()
        seal = base64.b64encode(self._key.sign(_SEALED + content))
        return content[:-1] + b',"seal":"' + seal + b'"}'

    def _certificate(self, session: Session, previous: str) -> Certificate:
        certificate = Certificate(
            key=_text(public_der(self._key.public_key())),
            keyid=self._signer.keyid,
            public_key=_text(public_der(self._signer.key.public_key())),
            ephemeral=self._signer.ephemeral,
            signature="",
        )
        signature = self._signer.key.sign(certified(certificate, session, previous))
        return certificate.model_copy(update={"signature": _text(signature)})


def certified(certificate: Certificate, session: Session, previous: str) -> bytes:
    fields = [
        session.run_id,
        session.plan_sha256,
        session.started.isoformat(),
        session.machine,
        certificate.key,
        previous,
        str(certificate.ephemeral),
    ]
    if any("\n" in field for field in fields):
        raise VerificationFailed("a session has a field of several lines")
    return "\n".join([_CERTIFIED, *fields, ""]).encode()


def digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def find_origin(lines: Iterable[tuple[bytes, Line]]) -> Origin | None:
    """Return the one signer of lines, if any. Raises `VerificationFailed` for a bad line."""
    previous, sessions, number = "", 0, 0
    key: Ed25519PublicKey | None = None
    first: Certificate | None = None
    for number, (content, line) in enumerate(lines, 1):
        if isinstance(line.entry, Session):
            key, sessions = _certified_key(line, line.entry, number), sessions + 1
            assert line.certificate is not None
            first = first or line.certificate
            mine = line.certificate
            if (mine.keyid, mine.ephemeral) != (first.keyid, first.ephemeral):
                raise VerificationFailed(
                    f"line {number} is signed with the key {mine.keyid}, and the lines before it "
                    f"with {first.keyid}"
                )
        if key is None:
            raise VerificationFailed("line 1 does not say who measured")
        if line.previous != previous:
            raise VerificationFailed(f"line {number} does not follow the line before it")
        _check_seal(content, key, number)
        previous = digest(content)
    if first is None:
        return None
    return Origin(first.keyid, first.ephemeral, sessions, number, previous)


def _certified_key(line: Line, session: Session, number: int) -> Ed25519PublicKey:
    certificate = line.certificate
    if certificate is None:
        raise VerificationFailed(f"line {number} does not say who measured")
    try:
        signer = public_key_of_der(base64.b64decode(certificate.public_key, validate=True))
        key = public_key_of_der(base64.b64decode(certificate.key, validate=True))
        signature = base64.b64decode(certificate.signature, validate=True)
        if keyid_of(signer) != certificate.keyid:
            raise VerificationFailed(f"line {number} names another key than it holds")
        signer.verify(signature, certified(certificate, session, line.previous))
    except (binascii.Error, ValueError) as error:
        raise VerificationFailed(f"line {number} names no key: {error}") from None
    except InvalidSignature:
        raise VerificationFailed(
            f"line {number} is not signed with the key {certificate.keyid}"
        ) from None
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


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
