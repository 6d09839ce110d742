"""From which NUMA nodes the kernel takes the memory of this process, and of all that it starts."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Collection

# Numbers of the system call, by machine (asm/unistd.h), and of its policies (linux/mempolicy.h).
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
MPOL_PREFERRED, MPOL_PREFERRED_MANY = 1, 5
WORD_BITS = 64


def prefer(nodes: Collection[int]) -> None:
    """Take memory of these nodes as long as they have some. Where the kernel knows no such policy,
    or a container may not set one, nothing changes: memory is of the node whose CPU writes to it
    first."""
    number = SET_MEMPOLICY.get(platform.machine())
    if number is None or not nodes:
        return
    words = max(nodes) // WORD_BITS + 1
    mask = (ctypes.c_uint64 * words)()
    for node in nodes:
        mask[node // WORD_BITS] |= 1 << node % WORD_BITS
    policy = MPOL_PREFERRED if len(nodes) == 1 else MPOL_PREFERRED_MANY
    # The kernel takes one bit less than it is told of.
    ctypes.CDLL(None).syscall(number, policy, mask, ctypes.c_ulong(words * WORD_BITS + 1))
