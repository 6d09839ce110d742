"""Hide the secrets of this process from its children, which run foreign code as the same user.

If a process is not dumpable, Linux hides its memory, environment and descriptors from every process
without CAP_SYS_PTRACE.
"""

from __future__ import annotations

import ctypes
import os

PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
CAP_SYS_PTRACE = 19
CAPABILITY_VERSION = 0x20080522
# Variables that hold or name the key, and identity tokens of CI services.
_PREFIXES = (
    "NSABENCH_SIGNING_KEY",
    "ACTIONS_ID_TOKEN_REQUEST_",
    "BUILDKITE_AGENT_ACCESS_TOKEN",
)
_withheld: dict[str, str] = {}


def seclude() -> None:
    """Hide this process from its children, and remove the secrets from their environment.

    The children also lose CAP_SYS_PTRACE. Call this before any process is started.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0)  # fails without privileges
    # Some container engines make capabilities inheritable; a child of root keeps those.
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    known = libc.capget(header, sets) == 0
    inheritable = 2  # sets: effective, permitted and inheritable capabilities below 32, then others
    sets[inheritable] &= ~(1 << CAP_SYS_PTRACE)
    if known:
        libc.capset(header, sets)
    libc.getenv.restype = ctypes.c_void_p
    for name in [name for name in os.environ if is_secret(name)]:
        _withheld[name] = os.environ[name]
        # Write zeros, since root, crash reporters and monitors can read /proc/PID/environ.
        address = libc.getenv(name.encode())
        if address:
            ctypes.memset(address, 0, len(ctypes.string_at(address)))
        del os.environ[name]


def is_secret(name: str) -> bool:
    return name.startswith(_PREFIXES)


def variables() -> dict[str, str]:
    """Return the secret variables, including those that `seclude` removed."""
    return {**_withheld, **{name: os.environ[name] for name in os.environ if is_secret(name)}}
