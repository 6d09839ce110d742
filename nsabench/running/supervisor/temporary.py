"""Make temporary folders that the next run removes if their process was killed."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

PREFIX = "nsabench-scratch-"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    def __init__(self) -> None:
        super().__init__(prefix=f"{_owner_prefix(os.getpid())}-", ignore_cleanup_errors=True)

    def remove(self) -> None:
        try:
            self.cleanup()
        except RecursionError:  # Python calls itself for each folder in another
            _remove(self.name)


def sweep() -> None:
    if not _identify_host():
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}{_identify_host()}-*-*-*"):
        pid = folder.name.removeprefix(f"{PREFIX}{_identify_host()}-").partition("-")[0]
        if not pid.isdecimal():
            continue
        with suppress(OSError):
            if not folder.name.startswith(f"{_owner_prefix(int(pid))}-"):
                _remove(str(folder))


def _owner_prefix(pid: int) -> str:
    """Return the prefix of a process's folders; no earlier process with its number had it."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        started = status.rpartition(")")[2].split()[19]  # in ticks since boot
    except (FileNotFoundError, ProcessLookupError):
        started = "ended"
    return f"{PREFIX}{_identify_host()}-{pid}-{started}"


@cache
def _identify_host() -> str:
    with suppress(OSError):
        boot = _BOOT_ID.read_text().strip().replace("-", "")[:12]
        namespace = str(_PID_NAMESPACE.readlink()).strip("pid:[]")
        return f"{boot}.{namespace}"
    return ""


def _remove(folder: str) -> None:
    if Path(folder).is_symlink():  # `chmod` would follow it
        Path(folder).unlink()
        return
    # A kernel may have made folders that their owner can neither read nor write.
    for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        subprocess.run([*command, "--", folder], check=False, stderr=subprocess.DEVNULL)
