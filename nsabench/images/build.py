"""Build the image of a combo (a set of pinned versions)."""

import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from nsabench.errors import NsabenchError
from nsabench.images import daemon, lock
from nsabench.images.combos import Checkout, tag

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "nsabench", "matrices", "kernels")
NOT_SOURCES = ("__pycache__", ".egg-info", ".pyc")


def build(
    checkout: Checkout,
    name: str,
    *,
    base: str = "",
    wheelhouse: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> str:
    """Build and tag the image of a combo; return its id.

    With a folder of wheels, and a base that has Python and a compiler, nothing is downloaded. `say`
    gets each line of the daemon. Raises `NsabenchError` with the last lines and the error.
    """
    combos = checkout.combos()
    base, driver = base or combos.base, combos.get(name).driver
    locked = lock.existing(checkout, name)
    client, image = daemon.connect(), tag(name)
    with daemon.explained(base), tempfile.TemporaryFile() as context:
        _pack(checkout, locked, wheelhouse, context)
        lines = client.api.build(
            fileobj=context,
            custom_context=True,
            dockerfile="docker/Dockerfile",
            tag=image,
            # A daemon without a bridge can only use the host's network.
            network_mode="host",
            rm=True,
            forcerm=True,
            decode=True,
            buildargs={
                "BASE": base,
                "COMBO": name,
                "INDEX": combos.get(name).index,
                "REQUIRE": f"driver>={driver}" if driver is not None else "",
                "REVISION": checkout.revision(),
                "LOCK_SHA256": lock.sha256(locked),
            },
        )
        _follow_build(lines, image, say)
        return str(client.images.get(image).id)


def _pack(checkout: Checkout, locked: Path, wheelhouse: Path | None, file: IO[bytes]) -> None:
    with tarfile.open(fileobj=file, mode="w") as tar:
        for part in (*SOURCES, "docker/Dockerfile"):
            tar.add(checkout.root / part, part, filter=_normalise)
        tar.add(locked, "docker/lock.txt", filter=_normalise)
        for wheel in sorted(wheelhouse.glob("*.whl")) if wheelhouse is not None else ():
            tar.add(wheel, f"wheels/{wheel.name}", filter=_normalise)
    file.seek(0)


def _normalise(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Remove what differs between checkouts of one commit, so that the daemon can use its cache."""
    if any(member.name.endswith(end) or f"{end}/" in member.name for end in NOT_SOURCES):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


def _follow_build(lines: Iterator[dict[str, Any]], image: str, say: Callable[[str], None]) -> None:
    last: list[str] = []
    for line in lines:
        if "error" in line:
            reason = " ".join([*last[-3:], str(line["error"]).strip()])
            remedy = "run it again with --verbose, and read the lines before the error."
            if "no space left" in reason:
                remedy = "make room on the disk, for example with `docker image prune`."
            raise NsabenchError(f"building {image} failed: {reason[-600:]}", remedy)
        text = str(line.get("stream") or line.get("status") or "").strip()
        if text:
            last.append(text)
            say(text)
