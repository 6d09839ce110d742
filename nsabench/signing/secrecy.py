"""Hides the secrets of this process from the processes that it starts, which run foreign code.

They have the same uid. Linux hides the memory, the first environment and the descriptors of a
process that is not dumpable from every process without CAP_SYS_PTRACE.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
CAP_SYS_PTRACE = 19
# Variables that hold or name the key, and those of CI services for identity tokens.
_PREFIXES = (
    "NSABENCH_SIGNING_KEY",
    "ACTIONS_ID_TOKEN_REQUEST_",
    "BUILDKITE_AGENT_ACCESS_TOKEN",
)
_withheld: dict[str, str] = {}


def seclude() -> None:
    """Close this process to those that it starts, and remove its secrets from the environment.

    Call it before anything is started. If root calls it, its children have no CAP_SYS_PTRACE.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0)  # fails without privileges
    libc.getenv.restype = ctypes.c_void_p
    for name in [name for name in os.environ if is_secret(name)]:
        _withheld[name] = os.environ[name]
        # /proc/PID/environ shows the block that the process was started with, also what is deleted
        # from the environment. Root, crash reporters and monitors read it.
        address = libc.getenv(name.encode())
        if address:
            ctypes.memset(address, 0, len(ctypes.string_at(address)))
        del os.environ[name]


def is_secret(name: str) -> bool:
    """Return whether foreign code must not see a variable."""
    return name.startswith(_PREFIXES)


def variables() -> dict[str, str]:
    """Return the secret variables, also those that were removed from the environment."""
    return {**_withheld, **{name: os.environ[name] for name in os.environ if is_secret(name)}}


def ancestors_with(name: str) -> list[int]:
    """Return the processes above this one whose first environment holds a readable variable."""
    found = []
    pid = os.getppid()
    while pid > 1:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:  # it is gone, or cannot be read
            break
        if any(line.startswith(f"{name}=".encode()) for line in environment.split(b"\0")):
            found.append(pid)
        pid = int(status.rpartition(")")[2].split()[1])
    return found
