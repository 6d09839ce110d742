"""What an image is made of, packed: the sources, the lock in two parts, the wheels."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import IO

from nsabench.images import sbom
from nsabench.images.combos import Checkout
from nsabench.images.lock import FLASH_ATTN
from nsabench.images.wheelhouse import existing_lock

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "nsabench", "matrices", "kernels")
SCRIPTS = ("docker/Dockerfile", "docker/install.sh", "docker/head_dims.py")
NOT_SOURCES = ("__pycache__", ".egg-info", ".pyc")


def pack(
    checkout: Checkout, name: str, wheelhouse: Path | None, flash_attn: bool, file: IO[bytes]
) -> None:
    """Write the tar that the Dockerfile copies from, and nothing else; `file` is rewound.

    Raises `UsageError` when the combo has no lock, `NsabenchError` without a bill of materials.
    """
    with tarfile.open(fileobj=file, mode="w") as tar, tempfile.TemporaryDirectory() as folder:
        for part in (*SOURCES, *SCRIPTS):
            tar.add(checkout.root / part, part, filter=_plain)
        made = Path(folder)
        _write_made(checkout, name, flash_attn, made)
        tar.add(made, "docker", filter=_plain)
        for wheel in sorted(wheelhouse.glob("*.whl")) if wheelhouse is not None else ():
            part = "common" if _is_pinned(wheel, made / "common.txt") else "torch"
            tar.add(wheel, f"wheels-{part}/{wheel.name}", filter=_plain)
    file.seek(0, io.SEEK_SET)


def _write_made(checkout: Checkout, name: str, flash_attn: bool, folder: Path) -> None:
    lock = existing_lock(checkout, name)
    common, own = split(checkout, name)
    (folder / "common.txt").write_text(common)
    (folder / "torch.txt").write_text(own)
    shutil.copyfile(lock, folder / "lock.txt")
    locks = [lock]
    if flash_attn:
        locks.append(checkout.lock(FLASH_ATTN))
        shutil.copyfile(locks[-1], folder / f"{FLASH_ATTN}.txt")
    (folder / "owned/results").mkdir(parents=True)
    # From the root on: of a folder that is there, and gets a file, the layer would hold the time.
    share = folder / "share/usr/share/nsabench"
    share.mkdir(parents=True)
    sbom.write(checkout, locks, share / "sbom.cdx.json")


def split(checkout: Checkout, name: str) -> tuple[str, str]:
    """The lock in two: what the current combos pin alike, and the rest, which torch is in.

    The first is the same text for most combos, so that a daemon and a registry keep one layer.
    """
    combos = checkout.combos().combos
    mine = entries(checkout.lock(name))
    alike = set(mine)
    for other, combo in combos.items():
        # Those of numpy 1 and the CPU differ in much; what they have of the rest is shared, too.
        if combo.cuda and combo.numpy != "<2" and checkout.lock(other).is_file():
            alike &= set(entries(checkout.lock(other)))
    common = [entry for entry in mine if entry in alike]
    own = [entry for entry in mine if entry not in alike]
    return "".join(common), "".join(own)


def entries(lock: Path) -> tuple[str, ...]:
    """The packages of a lock, each with its hashes, as they stand there."""
    return _entries(lock.read_text())


@cache
def _entries(text: str) -> tuple[str, ...]:
    return tuple(re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:])


def _is_pinned(wheel: Path, lock: Path) -> bool:
    name = re.sub(r"[-_.]+", "-", wheel.name.partition("-")[0]).lower()
    return any(entry.startswith(f"{name}==") for entry in entries(lock))


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if any(member.name.endswith(end) or f"{end}/" in member.name for end in NOT_SOURCES):
        return None
    # Owner and time of the checkout would make every build a different one.
    member.uid = member.gid = 0
    member.mtime = 315532800
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member
