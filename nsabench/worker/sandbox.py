"""Enter the sandbox of a worker before foreign code is imported. No worker ever leaves it."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from nsabench.machine import capabilities, landlock, seccomp
from nsabench.worker.protocol import Sandbox

DENIED = (
    "the sandbox denies it: a kernel may write only below $TMPDIR, and read no run folder. If you "
    "trust the kernel, use --no-sandbox"
)
# The devices that kernels need. With all of /dev, a kernel that root runs could write to any disk.
_DEVICES = "null", "zero", "full", "random", "urandom", "tty", "nvidia*", "dri", "kfd", "dxg"
# Caches of compilers, by the environment variable that names the folder.
_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUTE_DSL_CACHE_DIR": "cute",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "flash_attn",
    "XDG_CACHE_HOME": "cache",
    "TMPDIR": "tmp",
}
# FlashAttention-4 has no cache without this variable.
_KEPT = {"FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1"}
# The folder of the daemon through which several processes share a GPU (MPS).
_MPS, _MPS_FOLDER = "CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"
_COPYING_S = 30.0
# These results of autotuning are not copied, since several processes shared the GPU meanwhile.
_CHOICES = ("*.autotune.json", "*.best_config")
_MAX_FILE_BYTES = 16 << 30
_MAX_OPEN_FILES = 1 << 14

_restrictions = ""


def enter(sandbox: Sandbox) -> None:
    global _restrictions
    scratch = Path(sandbox.scratch)
    for variable, name in _CACHES.items():
        (scratch / name).mkdir(exist_ok=True)
        os.environ[variable] = str(scratch / name)
    os.environ.update(_KEPT)
    tempfile.tempdir = None  # an import may have made `tempfile` read the old $TMPDIR
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for what, most in (
        (resource.RLIMIT_FSIZE, _MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES),
    ):
        hard = resource.getrlimit(what)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(what, (limit, limit))
    # Drop all others: with CAP_DAC_READ_SEARCH, for example, a file can be opened without its path.
    capabilities.keep(
        capabilities.CAP_DAC_OVERRIDE, capabilities.CAP_IPC_LOCK, capabilities.CAP_SYS_NICE
    )
    scoped = landlock.abi() >= landlock.SCOPE_ABI
    _restrictions = ", ".join(
        [*_restrict_files(scratch, sandbox.hidden), *_restrict_calls(signals=not scoped)]
    )
    if sandbox.begins_as:
        copy_caches(Path(sandbox.begins_as), scratch)


class _TookTooLong(Exception):
    """Ends `copytree`, which would go on after an `OSError`."""


def copy_caches(others: Path, scratch: Path) -> None:
    """Copy the compiler caches that earlier workers left in their scratch.

    Foreign code has written there. So the copy is made inside the sandbox, follows no link, and has
    a time limit. A cache is copied completely or not at all, since compilers trust its content.
    """
    end = time.monotonic() + _COPYING_S
    chosen = shutil.ignore_patterns(*_CHOICES)

    def refuse_delay() -> None:
        if time.monotonic() > end:
            raise _TookTooLong

    def copy(source: str, target: str) -> None:
        refuse_delay()
        shutil.copy2(source, target)

    def ignore(folder: str, names: list[str]) -> set[str]:
        refuse_delay()  # a tree may have no files
        return chosen(folder, names)

    for name in set(_CACHES.values()) - {_CACHES["TMPDIR"]}:
        if (others / name).is_symlink():
            continue
        making = scratch / f".{name}.copied"
        try:
            shutil.copytree(others / name, making, symlinks=True, ignore=ignore, copy_function=copy)
            making.rename(scratch / name)
        except (OSError, RecursionError, _TookTooLong):
            shutil.rmtree(making, ignore_errors=True)


def restrictions() -> str:
    """Return what is denied to foreign code, such as "files, TCP, signals (Landlock 7)"."""
    return _restrictions or "none: it was not asked for"


def is_entered() -> bool:
    return bool(_restrictions)


def _restrict_files(scratch: Path, hidden: Iterable[str]) -> Iterator[str]:
    version = landlock.abi()
    if not version:
        yield "none: this Linux has no Landlock"
        return
    forbidden = {*map(Path.resolve, map(Path, hidden)), *_list_disks()}
    devices = (path for pattern in _DEVICES for path in Path("/dev").glob(pattern))
    own = [scratch, Path("/proc/self").resolve(), *devices]
    try:
        # Names may be read everywhere: Python lists the folders in which it searches for modules.
        landlock.restrict(paths_except(forbidden), [Path("/")], own)
    except OSError as error:
        yield f"none: Landlock {version} refused it ({error.strerror})"
        return
    network = ", TCP" if version >= landlock.NETWORK_ABI else ""
    signals = ", signals" if version >= landlock.SCOPE_ABI else ""
    yield f"files{network}{signals} (Landlock {version})"


def _restrict_calls(*, signals: bool) -> Iterator[str]:
    """Restrict system calls, and signals if `signals`: an old Landlock does not restrict them."""
    connects = Path(os.environ.get(_MPS, _MPS_FOLDER), "control").exists()
    try:
        seccomp.restrict(signals=signals, connects=connects)
    except OSError as error:
        yield f"no system calls ({error.strerror})"
    else:
        sockets = "sockets but local ones" if connects else "sockets"
        yield f"{sockets}, signals (seccomp)" if signals else f"{sockets} (seccomp)"


def _list_disks() -> Iterator[Path]:
    for path in Path("/dev").iterdir():
        with suppress(OSError):
            if path.is_block_device() or path.name in ("mem", "kmem", "port"):
                yield path


def paths_except(hidden: Iterable[Path], root: Path = Path("/")) -> Iterator[Path]:
    """Yield paths that together hold everything beneath `root` except the hidden paths."""
    beneath = [path for path in hidden if path.is_relative_to(root)]
    if not beneath:
        yield root
    elif root not in beneath and root.is_dir():
        try:
            children = list(root.iterdir())
        except PermissionError:  # this user cannot read it anyway
            return
        for child in children:
            if not child.is_symlink():  # the path of a link's target decides about it
                yield from paths_except(beneath, child)
