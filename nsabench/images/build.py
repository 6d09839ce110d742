"""Builds the image of a combo."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from nsabench.errors import NsabenchError
from nsabench.images import daemon, sbom
from nsabench.images.combos import Checkout, tag
from nsabench.images.lock import FLASH_ATTN, sha256
from nsabench.images.wheelhouse import existing_lock

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "nsabench", "matrices", "kernels")
NOT_SOURCES = ("__pycache__", ".egg-info", ".pyc")


@dataclass(frozen=True)
class FlashAttn:
    """How flash-attn is compiled. No `devel_base`: the one in combos.yaml."""

    devel_base: str = ""
    max_jobs: int = 4
    archs: str = "80;90"


def build(
    checkout: Checkout,
    name: str,
    *,
    base: str = "",
    wheelhouse: Path | None = None,
    flash_attn: FlashAttn | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> str:
    """Build and tag; returns the image's id.

    With a wheelhouse, and a base that has Python and a compiler, nothing is fetched. Raises
    `NsabenchError` with the step that failed.
    """
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
            "DEVEL_BASE": flash_attn.devel_base or combos.bases.devel,
            "MAX_JOBS": str(flash_attn.max_jobs),
            "FLASH_ATTN_ARCHS": flash_attn.archs,
        }
    with daemon.in_words(base), tempfile.TemporaryFile() as context:
        _write_context(checkout, locks, wheelhouse, context)
        lines = client.api.build(
            fileobj=context,
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
        return str(client.images.get(image).id)


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


def _write_context(
    checkout: Checkout, locks: Sequence[Path], wheelhouse: Path | None, file: IO[bytes]
) -> None:
    """The sources, the locks, the wheels: what the Dockerfile copies, and nothing else."""
    with tarfile.open(fileobj=file, mode="w") as tar:
        for part in (*SOURCES, "docker/Dockerfile"):
            tar.add(checkout.root / part, part, filter=_source)
        for lock in locks:
            tar.add(lock, f"docker/locks/{lock.name}", filter=_source)
        with tempfile.TemporaryDirectory() as folder:
            bill = sbom.write(checkout, locks, Path(folder) / "sbom.cdx.json")
            tar.add(bill, "docker/sbom.cdx.json", filter=_source)
        if wheelhouse is not None:
            for wheel in sorted(wheelhouse.glob("*.whl")):
                tar.add(wheel, f"wheelhouse/{wheel.name}", filter=_source)
    file.seek(0, io.SEEK_SET)


def _source(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if any(member.name.endswith(end) or f"{end}/" in member.name for end in NOT_SOURCES):
        return None
    # Owner and time of the checkout would make every build a different one.
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


def revision(root: Path) -> str:
    """The commit, marked when the checkout differs from it."""
    try:
        done = subprocess.run(
            [
                "git",
                "-C",
                str(root),
                "describe",
                "--always",
                "--abbrev=40",
                "--exclude=*",
                "--dirty",
            ],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def _digest(client: Any, base: str) -> str:
    """The digest that the base is named by, else the id of what has that name here."""
    from docker.errors import ImageNotFound

    if "@" in base:
        return base.partition("@")[2]
    try:
        return str(client.images.get(base).id)
    except ImageNotFound:
        return "unknown"
