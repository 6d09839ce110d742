"""What an image was made of and by what: SLSA provenance v1 in an in-toto statement, signed (DSSE).

https://slsa.dev/spec/v1.0/provenance. It stands beside the bill of materials, and not in the image,
whose digest it names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nsabench.errors import EnvironmentRefused, VerificationFailed
from nsabench.evidence.manifest import dsse
from nsabench.images.combos import REPOSITORY, Checkout
from nsabench.images.lock import sha256
from nsabench.images.revision import revision
from nsabench.model.version import __version__
from nsabench.signing import keys
from nsabench.signing.signer import Signer

PREDICATE = "https://slsa.dev/provenance/v1"
STATEMENT = "https://in-toto.io/Statement/v1"
BUILD_TYPE = "urn:nsabench:image:v1"


@dataclass(frozen=True)
class Source:
    """What a build was asked for. `base_digest` is the one that it found."""

    combo: str
    base: str
    base_digest: str
    target: str


def place(folder: Path, image: str) -> Path:
    """The file of an image; its public key is beside it, as `.pub`."""
    return folder / f"{image}.provenance.json"


def describe(
    checkout: Checkout,
    source: Source,
    image: Mapping[str, Any],
    began: datetime,
    daemon: Mapping[str, Any],
) -> dict[str, Any]:
    """The statement. image: what the daemon says of it. Layers are named, since they are the same
    for every build; the image's own digest also holds the time at which it was made.
    """
    commit = revision(checkout.root)
    made_of = [
        _resource("git", "", "gitCommit", commit.removesuffix("-dirty")),
        _resource("base", source.base, "sha256", source.base_digest.removeprefix("sha256:")),
        _resource("lock", checkout.lock(source.combo).name, "sha256", _lock(checkout, source)),
        _resource("combos", "combos.yaml", "sha256", sha256(checkout.docker / "combos.yaml")),
    ]
    return {
        "_type": STATEMENT,
        "subject": [_resource("", f"{REPOSITORY}:{source.combo}", "sha256", _hex(image["Id"]))],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "combo": source.combo,
                    "base": source.base,
                    "target": source.target,
                    "revision": commit,
                },
                "internalParameters": {"layers": image["RootFS"]["Layers"]},
                "resolvedDependencies": made_of,
            },
            "runDetails": {
                "builder": {
                    "id": BUILD_TYPE,
                    "version": {"nsabench": __version__, "daemon": str(daemon.get("Version", ""))},
                },
                "metadata": {
                    "startedOn": _time(began),
                    "finishedOn": _time(datetime.now(UTC)),
                },
            },
        },
    }


def write(statement: Mapping[str, Any], signer: Signer, folder: Path, image: str) -> Path:
    """Sign and write, the public key beside it. Raises `EnvironmentRefused` when it cannot."""
    payload = json.dumps(statement, indent=1, sort_keys=True, allow_nan=False).encode()
    target = place(folder, image)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        target.write_bytes(dsse.sign(payload, signer.key).to_json())
        target.with_suffix(".pub").write_bytes(keys.public_pem(signer.key.public_key()))
    except OSError as error:
        raise EnvironmentRefused(
            f"{target} cannot be written: {error.strerror}", "give --evidence a writable folder."
        ) from None
    return target


def read(path: Path) -> dict[str, Any]:
    """The statement, its signature checked by the key beside it.

    Raises `VerificationFailed` when it does not fit or is no provenance, `UsageError` without a
    key.
    """
    envelope = dsse.Envelope.parse(path.read_bytes())
    (key,) = keys.read_publics(path.with_suffix(".pub"))
    envelope.check(key)
    try:
        statement = json.loads(envelope.content())
    except ValueError:
        statement = None
    if not isinstance(statement, dict) or statement.get("predicateType") != PREDICATE:
        raise VerificationFailed(f"{path} holds no SLSA provenance")
    return statement


def _resource(name: str, what: str, algorithm: str, digest: str) -> dict[str, Any]:
    found = {"name": what or name, "digest": {algorithm: digest}}
    return found | ({"annotations": {"kind": name}} if name else {})


def _lock(checkout: Checkout, source: Source) -> str:
    return sha256(checkout.lock(source.combo))


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
