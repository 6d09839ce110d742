"""The signed statement: an in-toto Statement v1 over the files of a run.

docs/reference/manifest.md describes the predicate. A change of meaning needs a new predicate type.
https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
"""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from nsabench import limits, reading
from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest import files
from nsabench.evidence.manifest.dsse import Envelope, parse_part
from nsabench.model.case import Frozen
from nsabench.model.plan import Moment, RunId
from nsabench.model.vocabulary import Word
from nsabench.running.folder import MANIFEST
from nsabench.signing.keys import public_key_of_der
from nsabench.signing.signer import RUN_KEY

NOT_SIGNED = frozenset({MANIFEST, RUN_KEY})
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=1 << 53)]


class Trust(Word):
    """How far a run can be trusted, from the lowest level to the highest."""

    UNSIGNED = "unsigned", "nothing shows that it was not altered"
    EPHEMERAL = "ephemeral", "not altered since it was made; nothing shows by whom"
    UNPINNED = "unpinned", "not altered since its key signed it; you do not trust that key"
    PINNED = "pinned", "signed by a key that you trust"

    def reaches(self, other: Trust) -> bool:
        order = list(Trust)
        return order.index(self) >= order.index(other)


class Digest(Frozen):
    sha256: Sha256


class Subject(Frozen):
    name: str
    digest: Digest


class SignedBy(Frozen):
    keyid: Sha256
    public_key: str  # base64 of the DER form
    trust: Literal[Trust.EPHEMERAL, Trust.UNPINNED]  # as the signer says


class ShardSigned(Frozen):
    run_id: RunId
    keyid: Sha256
    trust: Literal[Trust.EPHEMERAL, Trust.UNPINNED]  # as its signer says
    signed: Moment


class Library(Frozen):
    version: str  # or commit
    licence: str  # an SPDX expression


class PlanBrief(Frozen):
    created: Moment
    nsabench: str
    device: str
    shard: str
    matrices: dict[str, str]  # name -> sha256
    kernels_sha256: str
    ops_sha256: str
    packages: dict[str, Library]  # the installed libraries that implementations call
    cases: Count


class EnvironmentBrief(Frozen):
    complete: bool
    gpu: str | None = None
    sm: str | None = None
    driver: str | None = None
    python: str | None = None
    torch: str | None = None
    triton: str | None = None
    cuda: str | None = None
    combo: str | None = None
    image_digest: str | None = None
    commits: dict[str, str] = Field(default={})  # by checkout; "-dirty" if files had changed


class Predicate(Frozen):
    run_id: RunId
    signed: Moment
    signer: SignedBy
    plan: PlanBrief
    environment: EnvironmentBrief
    records: Count  # rows of the tables
    comparisons: Count
    samples: Count
    controls_caught: bool  # False: a check missed a control, or no control reached it
    results_schema: Count
    shards: tuple[ShardSigned, ...] = ()  # the shards that were merged

    @property
    def as_shard(self) -> ShardSigned:
        by = self.signer
        return ShardSigned(run_id=self.run_id, keyid=by.keyid, trust=by.trust, signed=self.signed)


class Statement(BaseModel):
    model_config = ConfigDict(frozen=True, populate_by_name=True)

    type: Literal["https://in-toto.io/Statement/v1"] = Field(
        "https://in-toto.io/Statement/v1", alias="_type"
    )
    subject: list[Subject]
    predicate_type: Literal["urn:nsabench:run:v2"] = Field(
        "urn:nsabench:run:v2", alias="predicateType"
    )
    predicate: Predicate

    def to_json(self) -> bytes:
        """Return the bytes that are signed: sorted keys, one field a line, no NaN."""
        content = self.model_dump(mode="json", by_alias=True)
        return json.dumps(content, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Statement:
        return parse_part(data, "the statement", cls)

    @property
    def digests(self) -> dict[str, str]:
        return {subject.name: subject.digest.sha256 for subject in self.subject}


def read_envelope(folder: Path) -> Envelope:
    with files.readable(MANIFEST):
        if not (folder / MANIFEST).exists():
            raise VerificationFailed(f"{MANIFEST} is missing: the run is unsigned")
        return Envelope.parse(reading.read(folder / MANIFEST, limits.MANIFEST))


def verify_envelope(envelope: Envelope) -> tuple[Statement, str]:
    """Check that a statement was signed with the key in it. Return the statement and the keyid."""
    statement = Statement.parse(envelope.content())
    try:
        der = base64.b64decode(statement.predicate.signer.public_key, validate=True)
        key = public_key_of_der(der)
    except (binascii.Error, ValueError) as error:
        raise VerificationFailed(f"the manifest's public key cannot be read: {error}") from None
    keyid = envelope.check(key)
    if statement.predicate.signer.keyid != keyid:
        raise VerificationFailed(f"the statement names another key than {keyid}")
    return statement, keyid


def require_same(what: str, value: object, expected: object, source: str = "") -> None:
    if value != expected:
        why = f", as {source} says" if source else ""
        raise VerificationFailed(f"{what} is {value!r} and should be {expected!r}{why}")


def is_device(named: str, measured: str) -> bool:
    """Return whether torch measured the device that NVML named. torch also names a MIG slice."""
    return measured == named or measured.startswith(f"{named} MIG ")


def encode_key(der: bytes) -> str:
    return base64.b64encode(der).decode()
