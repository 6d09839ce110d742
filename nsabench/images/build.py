"""Builds the image of a combo."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nsabench.errors import NsabenchError
from nsabench.images import context, daemon, provenance, sbom, settled
from nsabench.images.combos import Checkout, tag
from nsabench.images.lock import FLASH_ATTN, sha256
from nsabench.images.revision import revision
from nsabench.images.wheelhouse import existing_lock
from nsabench.signing.signer import load_signer


@dataclass(frozen=True)
class FlashAttn:
    """How flash-attn is compiled. No `devel_base`: the one in combos.yaml. head_dims: such as
    "64 128"; none: all that it has."""

    devel_base: str = ""
    max_jobs: int = 4
    archs: str = "80;90"
    head_dims: str = ""


def build(
    checkout: Checkout,
    name: str,
    *,
    base: str = "",
    wheelhouse: Path | None = None,
    flash_attn: FlashAttn | None = None,
    say: Callable[[str], None] = lambda line: None,
    evidence: Path | None = None,
) -> str:
    """Build and tag; returns the image's id, which is the same of the same commit, lock and base.

    With a wheelhouse, and a base that has Python and a compiler, nothing is fetched. evidence: a
    folder for the signed provenance and the bill of materials. Raises `NsabenchError` with the step
    that failed, and `UsageError` when the key that is to sign cannot be used.
    """
    signer = load_signer() if evidence is not None else None
    began, when = datetime.now(UTC), settled.time_of(checkout.root)
    combos = checkout.combos()
    combo = combos.get(name)
    lock = existing_lock(checkout, name)
    base = base or combos.bases.runtime
    client = daemon.connect()
    locks = [lock]
    image, target, arguments = tag(name), "nsabench", {}
    if flash_attn is not None:
        image, target = f"{image}-{FLASH_ATTN}", FLASH_ATTN
        locks.append(checkout.lock(FLASH_ATTN))
        arguments = {
            "DEVEL_BASE": flash_attn.devel_base or combos.bases.devel_of(name, combo),
            "MAX_JOBS": str(flash_attn.max_jobs),
            "FLASH_ATTN_ARCHS": flash_attn.archs,
            "FLASH_ATTN_HEAD_DIMS": flash_attn.head_dims,
        }
    with daemon.in_words(base), tempfile.TemporaryFile() as packed:
        context.pack(checkout, name, wheelhouse, flash_attn is not None, packed)
        lines = client.api.build(
            fileobj=packed,
            custom_context=True,
            dockerfile="docker/Dockerfile",
            tag=image,
            target=target,
            # Without a bridge the daemon can only lend the host's network to a build.
            network_mode="host",
            rm=True,
            forcerm=True,
            decode=True,
            buildargs={
                "BASE": base,
                "COMBO": name,
                "INDEX": combo.index,
                "KERNELS": "/src/kernels" if combo.kernels else "",
                "REVISION": revision(checkout.root),
                "BASE_DIGEST": _digest(client, base),
                "LOCK_SHA256": sha256(lock),
                **arguments,
            },
        )
        _follow(lines, image, say)
        settled.settle(client, image, when, say)
        built = client.images.get(image)
        if evidence is not None and signer is not None:
            source = provenance.Source(name, base, _digest(client, base), target)
            record = provenance.describe(checkout, source, built.attrs, began, client.version())
            provenance.write(record, signer, evidence, image.partition(":")[2])
            sbom.write(checkout, locks, evidence / f"{image.partition(':')[2]}.cdx.json")
        return str(built.id)


def _follow(lines: Iterator[dict[str, Any]], image: str, say: Callable[[str], None]) -> None:
    last: list[str] = []
    for line in lines:
        if "error" in line:
            reason = " ".join([*last[-3:], str(line["error"]).strip()])
            remedy = "look at the lines above it with --verbose."
            if "no space left" in reason:
                remedy = "make room, for example `docker image prune`."
            raise NsabenchError(f"building {image} failed: {reason[-600:]}", remedy)
        text = str(line.get("stream") or line.get("status") or "").strip()
        if text:
            last.append(text)
            say(text)


def _digest(client: Any, base: str) -> str:
    """The digest that the base is named by, else the id of what has that name here."""
    from docker.errors import ImageNotFound

    if "@" in base:
        return base.partition("@")[2]
    try:
        return str(client.images.get(base).id)
    except ImageNotFound:
        return "unknown"
