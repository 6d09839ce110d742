"""Whether an image or a virtual environment holds what the lock of its combo says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsabench.errors import NsabenchError, VerificationFailed
from nsabench.images import daemon, installed, lock, programs, provenance
from nsabench.images.combos import Checkout, tag
from nsabench.images.wheelhouse import existing_lock

LIMIT_S = 900.0
# Beside the lock: what makes the environment, and what is built from the checkout.
OURS = frozenset({"pip", "nsabench", "nsa-kernels"})
FEW = 3  # of the differences are named


@dataclass(frozen=True)
class Check:
    name: str
    holds: bool
    detail: str


def image(checkout: Checkout, name: str, statement: Path | None) -> list[Check]:
    """The image that has the combo's tag. statement: its provenance.

    Raises `UsageError` when there is no such image, `EnvironmentRefused` without a daemon.
    """
    locked = existing_lock(checkout, name)
    client = daemon.connect()
    with daemon.in_words(tag(name)):
        found = client.images.get(tag(name))
        checks = list(_labels(found.labels, name, lock.sha256(locked)))
        looking = ["-I", "-c", Path(installed.__file__).read_text()]
        said = daemon.printed(client, found.id, "/opt/nsabench/bin/python", looking)
        bill = ["/usr/share/nsabench/sbom.cdx.json"]
        listing = daemon.printed(client, found.id, "cat", bill)
    checks += _contents(_parsed(said), locked)
    checks.append(_bill(_parsed(listing), locked))
    if statement is not None:
        checks.append(_origin(statement, found.attrs))
    return checks


def venv(checkout: Checkout, name: str, folder: Path) -> list[Check]:
    """A virtual environment. Raises `NsabenchError` when its Python does not run."""
    locked = existing_lock(checkout, name)
    command: list[str | Path] = [folder / "bin/python", "-I", installed.__file__ or ""]
    said = programs.run(command, f"looking into {folder}", LIMIT_S)
    return list(_contents(_parsed(said.encode()), locked))


def _labels(labels: Mapping[str, str], name: str, sha256: str) -> Iterator[Check]:
    combo = labels.get("nsabench.combo", "none")
    yield Check("combo", combo == name, f"its label says {combo}")
    said = labels.get("nsabench.lock.sha256", "none")
    yield Check("lock label", said == sha256, f"{said[:16]}, the lock here {sha256[:16]}")
    revision = labels.get("org.opencontainers.image.revision", "unknown")
    known = bool(re.fullmatch(r"[0-9a-f]{40}(-dirty)?", revision))
    yield Check("revision", known, revision if known else f"{revision!r} names no commit")


def _contents(said: Mapping[str, Any], locked: Path) -> Iterator[Check]:
    same = said.get("lock_sha256") == lock.sha256(locked)
    yield Check("lock", same, "the one here" if same else "not the one here")
    wanted = {_plain(package): version for package, version in lock.pinned(locked)}
    there = {_plain(package): version for package, version in said.get("packages", [])}
    wrong = [
        f"{package} {there.get(package, 'missing')} for {version}"
        for package, version in wanted.items()
        if there.get(package) != version
    ]
    wrong += [f"{package} is extra" for package in there if package not in wanted.keys() | OURS]
    if "nsabench" not in there:
        wrong.append("nsabench is missing")
    yield Check("packages", not wrong, _some(wrong) or f"{len(there)}, as the lock pins them")
    altered = list(said.get("altered", ["not looked at"]))
    yield Check("files", not altered, _some(altered) or "all as they were installed")


def _bill(bill: Mapping[str, Any], locked: Path) -> Check:
    named = {(c["name"], c["version"]) for c in bill.get("components", [])}
    same = named == set(lock.pinned(locked))
    return Check("bill", same, f"{len(named)} packages" if same else "names other packages")


def _origin(path: Path, attributes: Mapping[str, Any]) -> Check:
    try:
        statement = provenance.read(path)
        subject = statement["subject"][0]["digest"]["sha256"]
        definition = statement["predicate"]["buildDefinition"]
        layers = definition["internalParameters"]["layers"]
    except VerificationFailed as error:
        return Check("provenance", False, str(error))
    except (KeyError, IndexError, TypeError):
        return Check("provenance", False, f"{path} lacks what is needed to compare")
    if f"sha256:{subject}" == attributes["Id"]:
        return Check("provenance", True, f"{path} is of this image")
    same = layers == attributes["RootFS"]["Layers"]
    detail = "another build, the same layers" if same else "it is of an image with other layers"
    return Check("provenance", same, detail)


def _parsed(said: bytes) -> dict[str, Any]:
    try:
        found = json.loads(said)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise NsabenchError("what was looked into gave no answer", daemon.REBUILD)
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - FEW} more" if len(texts) > FEW else ""
    return "; ".join(texts[:FEW]) + more
