"""The chain that a journal is: each line is sealed by whoever measured it, over the one before.

A sitting (one process of one run) makes a key that it never writes anywhere. The signer of the run
certifies its public half in the sitting's first line; from there on that key seals every line. So
nobody can add, change or reorder lines who does not have the signer's key, also when the process
was killed and its journal lies open. What can be done to a journal is to cut lines off its end.

The format is in docs/reference/journal.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from nsabench.errors import VerificationFailed
from nsabench.model.journal import Certificate, Line, Sitting
from nsabench.signing import Signer
from nsabench.signing.keys import keyid_of, public_der, public_key_of_der

# Before what is signed, so that no signature can be taken for one of another kind.
_CERTIFIED = "nsabench sitting v1"
_SEALED = b"nsabench journal line v1\n"
_SEAL = re.compile(rb',"seal":"([A-Za-z0-9+/]{86}==)"\}')
_SEAL_BYTES = 99


@dataclass(frozen=True)
class Origin:
    """Who vouches for every line of a journal. keyid: of the one signer of all its sittings;
    end: the `link` of its last line; sha256: of all the lines, each with its end."""

    keyid: str
    ephemeral: bool
    sittings: int
    lines: int
    end: str
    sha256: str

    def __str__(self) -> str:
        named = f"{self.lines} lines of {self.sittings} sitting{'s'[: self.sittings != 1]}"
        return f"{named}, vouched for by the key {self.keyid}"


class Sealer:
    """Seals the lines of a sitting with a key that no other process has, and that is not kept."""

    def __init__(self, signer: Signer, run_id: str, plan_sha256: str, machine: str) -> None:
        self._signer = signer
        self._key = Ed25519PrivateKey.generate()
        self._run = {"run_id": run_id, "plan_sha256": plan_sha256, "machine": machine}

    def sitting(self, previous: str) -> Sitting:
        """The line that the sitting begins with."""
        certificate = Certificate(
            keyid=self._signer.keyid,
            public_key=_text(public_der(self._signer.key.public_key())),
            ephemeral=self._signer.ephemeral,
            signature="",
        )
        sitting = Sitting(
            **self._run,
            previous=previous,
            started=datetime.now(UTC),
            key=_text(public_der(self._key.public_key())),
            certificate=certificate,
        )
        signature = _text(self._signer.key.sign(certified(sitting)))
        certificate = certificate.model_copy(update={"signature": signature})
        return sitting.model_copy(update={"certificate": certificate})

    def seal(self, line: Line, previous: str) -> bytes:
        """The line as it is written, without its end."""
        linked = line.model_copy(update={"previous": previous})
        content = linked.model_dump_json(exclude={"seal"}).encode()
        seal = base64.b64encode(self._key.sign(_SEALED + content))
        return content[:-1] + b',"seal":"' + seal + b'"}'


def certified(sitting: Sitting) -> bytes:
    """What the signer signs of a sitting: all of it, a field a line."""
    fields = [
        sitting.run_id,
        sitting.plan_sha256,
        sitting.started.isoformat(),
        sitting.machine,
        sitting.key,
        sitting.previous,
        str(sitting.certificate.ephemeral),
    ]
    if any("\n" in one for one in fields):
        raise VerificationFailed("a sitting has a field of several lines")
    return "\n".join([_CERTIFIED, *fields, ""]).encode()


def link(line: bytes) -> str:
    """What the line after `line` names as its previous one."""
    return hashlib.sha256(line).hexdigest()


def origin(lines: Iterable[tuple[bytes, Line]]) -> Origin | None:
    """Who vouches for lines that were read; None where nobody does, since they are no chain.

    Raises `VerificationFailed` when they are a chain that is broken, or one of several signers.
    """
    previous, count = "", 0
    key: Ed25519PublicKey | None = None
    first: Certificate | None = None
    sittings = 0
    digest = hashlib.sha256()
    for number, (content, line) in enumerate(lines, 1):
        count = number
        digest.update(content + b"\n")
        if isinstance(line, Sitting):
            key, sittings = _key_of(line, number), sittings + 1
            first = first or line.certificate
            if (line.certificate.keyid, line.certificate.ephemeral) != (
                first.keyid,
                first.ephemeral,
            ):
                raise VerificationFailed(
                    f"line {number} was measured in the name of the key {line.certificate.keyid}, "
                    f"and what is before it in that of {first.keyid}"
                )
        elif key is None:
            if line.seal or line.previous:
                raise VerificationFailed(f"line {number} has a seal, and no sitting before it")
            continue
        if number > 1 and not previous:
            raise VerificationFailed(f"line {number} begins a chain behind lines without one")
        if line.previous != previous:
            raise VerificationFailed(f"line {number} does not follow the line before it")
        _check_seal(content, key, number)
        previous = link(content)
    if first is None:
        return None
    return Origin(first.keyid, first.ephemeral, sittings, count, previous, digest.hexdigest())


def _key_of(sitting: Sitting, number: int) -> Ed25519PublicKey:
    """The key of a sitting, once its signer's signature fits."""
    certificate = sitting.certificate
    try:
        signer = public_key_of_der(base64.b64decode(certificate.public_key, validate=True))
        key = public_key_of_der(base64.b64decode(sitting.key, validate=True))
        signature = base64.b64decode(certificate.signature, validate=True)
        if keyid_of(signer) != certificate.keyid:
            raise VerificationFailed(f"line {number} names another key than it holds")
        signer.verify(signature, certified(sitting))
    except (binascii.Error, ValueError) as error:
        raise VerificationFailed(f"line {number} names no key: {error}") from None
    except InvalidSignature:
        raise VerificationFailed(
            f"line {number} is not vouched for by the key {certificate.keyid}"
        ) from None
    return key


def _check_seal(content: bytes, key: Ed25519PublicKey | None, number: int) -> None:
    seal = _SEAL.fullmatch(content, max(len(content) - _SEAL_BYTES, 0))
    try:
        if seal is None or key is None:
            raise InvalidSignature
        sealed = content[: seal.start()] + b"}"
        key.verify(base64.b64decode(seal[1], validate=True), _SEALED + sealed)
    except InvalidSignature:
        raise VerificationFailed(f"line {number} is not what was measured") from None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
