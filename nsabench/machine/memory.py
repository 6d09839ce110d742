"""Reads the total memory of a device, so that a case that cannot fit is refused early."""

from __future__ import annotations

import psutil
import pynvml

from nsabench.machine.environment.host import read_cgroup
from nsabench.machine.environment.nvml import Device, attempt


def memory_of(device: str) -> int | None:
    """Return the bytes of the largest GPU, or those that this host may use; None if unknown."""
    if device == "cpu":
        host = int(psutil.virtual_memory().total)
        allowed = read_cgroup().memory_bytes
        return min(host, allowed) if allowed else host
    memories = [attempt(pynvml.nvmlDeviceGetMemoryInfo, gpu.handle) for gpu in Device.all()]
    return max((memory.total for memory in memories if memory is not None), default=None)
