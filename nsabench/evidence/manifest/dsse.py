"""Sign bytes together with their type, in a DSSE envelope.

https://github.com/secure-systems-lab/dsse/blob/master/protocol.md and envelope.md
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import BaseModel

from nsabench import limits
from nsabench.errors import VerificationFailed
from nsabench.model.case import Frozen
from nsabench.reading import OutOfBounds, parse_json
from nsabench.signing.keys import keyid_of

M = TypeVar("M", bound=BaseModel)
PAYLOAD_TYPE = "application/vnd.in-toto+json"


class Signature(Frozen):
    keyid: str
    sig: str


class Envelope(Frozen):
    """A DSSE envelope. Unknown fields are ignored, as the specification asks."""

    payload: str
    payloadType: str  # noqa: N815 (the specification's spelling)
    signatures: list[Signature]

    def to_json(self) -> bytes:
        """Return JSON with a line for each field, so that `sed` can extract fields."""
        return json.dumps(self.model_dump(), indent=1, sort_keys=True).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Envelope:
        envelope = parse_part(data, "the manifest", cls)
        if envelope.payloadType != PAYLOAD_TYPE:
            raise VerificationFailed(
                f"the payload of the manifest is {envelope.payloadType[:80]!r}, not {PAYLOAD_TYPE}"
            )
        return envelope

    def content(self) -> bytes:
        """Return the payload, unverified."""
        return _decode(self.payload, "payload")

    def check(self, key: Ed25519PublicKey) -> str:
        """Check that the only signature is by this key, and return the key's id."""
        if len(self.signatures) != 1:
            raise VerificationFailed(
                f"the manifest has {len(self.signatures)} signatures instead of one"
            )
        signature, keyid = self.signatures[0], keyid_of(key)
        if signature.keyid != keyid:
            raise VerificationFailed(
                f"the manifest names the key {signature.keyid[:64]!r} but contains the key {keyid}"
            )
        try:
            key.verify(_decode(signature.sig, "signature"), pae(PAYLOAD_TYPE, self.content()))
        except InvalidSignature:
            raise VerificationFailed(
                f"the signature does not fit the signed content (key {keyid})"
            ) from None
        return keyid


def parse_part(data: bytes, what: str, model: type[M]) -> M:
    try:
        return parse_json(data, limits.MANIFEST, model)
    except OutOfBounds as error:
        raise VerificationFailed(f"{what} {error}") from None


def sign(payload: bytes, key: Ed25519PrivateKey) -> Envelope:
    sig = key.sign(pae(PAYLOAD_TYPE, payload))
    return Envelope(
        payload=base64.b64encode(payload).decode(),
        payloadType=PAYLOAD_TYPE,
        signatures=[
            Signature(keyid=keyid_of(key.public_key()), sig=base64.b64encode(sig).decode())
        ],
    )


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return the pre-authentication encoding, which is what is signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _decode(text: str, what: str) -> bytes:
    # Only one encoding of the same bytes is valid: no URL-safe alphabet, blanks or unused bits.
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise VerificationFailed(f"the {what} is not base64: {error}") from None
    if base64.b64encode(data).decode() != text:
        raise VerificationFailed(f"the {what} is not canonical base64")
    return data
