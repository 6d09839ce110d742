"""What Triton is told of the GPU: its architecture, and nothing that would need one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from nsabench.preflight.architectures import REGISTERS, Architecture

CLOCK_KHZ = 1_500_000  # kernels ask for rates to model their time; any constant will do


class PretendedDriver:
    """The part of a Triton driver that compiling and choosing configurations asks."""

    def __init__(self, architecture: Architecture) -> None:
        self._target = GPUTarget("cuda", architecture.capability, 32)
        properties = {
            "max_shared_mem": architecture.shared_per_block,
            "max_num_regs": REGISTERS,
            "multiprocessor_count": architecture.processors,
            "warpSize": 32,
            "sm_clock_rate": CLOCK_KHZ,
            "mem_clock_rate": CLOCK_KHZ,
            "mem_bus_width": 384,
        }
        self.utils = SimpleNamespace(get_device_properties=lambda device: properties)
        self.binary_ext = "cubin"

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        """There is one."""

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        capability = int(self._target.arch)
        return capability // 10, capability % 10

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def is_active(self) -> bool:
        return True


def install(architecture: Architecture) -> None:
    """From here on Triton of this process compiles for the architecture."""
    driver.set_active(PretendedDriver(architecture))
