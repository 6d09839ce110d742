"""Keeps what this process knows from the processes that it starts: they run foreign code.

They have the same uid. So nothing but the kernel of the operating system stands between them and
this process: a process that is not dumpable shows its memory, its first environment and its
descriptors to nobody without CAP_SYS_PTRACE, and lets nobody write there.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
CAP_SYS_PTRACE = 19
# What says where the key is, its text included; and what CI services give for an identity token.
_PREFIXES = (
    "NSABENCH_SIGNING_KEY",
    "SIGSTORE_ID_TOKEN",
    "ACTIONS_ID_TOKEN_REQUEST_",
    "BUILDKITE_AGENT_ACCESS_TOKEN",
)
_withheld: dict[str, str] = {}


def seclude() -> None:
    """Close this process to those that it starts, and take its secrets out of their environment.

    To be called before anything is started. Also of root: what is started afterwards has no
    CAP_SYS_PTRACE, unless this process may not take it away.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0)  # refused to who is not privileged
    libc.getenv.restype = ctypes.c_void_p
    for name in [name for name in os.environ if is_secret(name)]:
        _withheld[name] = os.environ[name]
        # /proc/PID/environ shows the block that the process was started with, whatever is deleted
        # from the environment later; root, crash reporters and monitors read it there.
        address = libc.getenv(name.encode())
        if address:
            ctypes.memset(address, 0, len(ctypes.string_at(address)))
        del os.environ[name]


def is_secret(name: str) -> bool:
    """Whether a variable is none of the business of foreign code."""
    return name.startswith(_PREFIXES)


def variables() -> dict[str, str]:
    """The secret variables, whether or not they were taken out of the environment."""
    return {**_withheld, **{name: os.environ[name] for name in os.environ if is_secret(name)}}


@contextmanager
def restored() -> Iterator[None]:
    """Have the variables in the environment again, where a library looks for them.

    To be used only when nothing foreign runs any more.
    """
    os.environ.update(_withheld)
    try:
        yield
    finally:
        for name in _withheld:
            os.environ.pop(name, None)


def ancestors_with(name: str) -> list[int]:
    """The processes above this one whose first environment holds a variable and can be read."""
    found = []
    pid = os.getppid()
    while pid > 1:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:  # it is gone, or closed to us as well
            break
        if any(line.startswith(f"{name}=".encode()) for line in environment.split(b"\0")):
            found.append(pid)
        pid = int(status.rpartition(")")[2].split()[1])
    return found
