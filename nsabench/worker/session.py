"""What a worker keeps warm between cases: the timer, the sensors, the imported implementations."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from nsabench import registry
from nsabench.errors import EnvironmentRefused
from nsabench.machine.environment import nvml
from nsabench.registry import Implementation
from nsabench.worker.compilation import compile_case
from nsabench.worker.measure import measure
from nsabench.worker.outputs import Deliver
from nsabench.worker.precheck import Report
from nsabench.worker.protocol import Compile, Compiled, Measure, Measured
from nsabench.worker.state import give_back
from nsabench.worker.timing.timer import CpuTimer, Timer


@dataclass(frozen=True)
class Session:
    device: str
    timer: Timer
    sensors: nvml.Device | None
    items: dict[tuple[str, str], Implementation]

    @classmethod
    def open(
        cls,
        device: str,
        kernels: Path | None,
        sources: Mapping[str, str] | None = None,
        ops_file: Path | None = None,
    ) -> Session:
        """Made once a process. The timer first: it binds its clocks before foreign code runs.

        Raises `EnvironmentRefused` when torch sees no such device.
        """
        timer, sensors = tools(device)
        loaded = registry.load(kernels, sources, ops_file=ops_file)
        items = {(item.op, item.name): item for item in loaded}
        gc.collect()
        gc.freeze()  # what is imported stays; collecting between cases need not look at it
        return cls(device, timer, sensors, items)

    def compile(self, request: Compile) -> Compiled:
        item = self.items.get((request.case.op, request.implementation))
        if item is None:
            return Compiled(reason=f"{request.implementation} is not installed")
        return compile_case(request.case, item, self.device)

    def measure(self, request: Measure, report: Report, deliver: Deliver) -> Measured:
        case = request.case
        measured = measure(
            case,
            [self.items[case.op, name] for name in request.implementations],
            device=self.device,
            timer=self.timer,
            sensors=self.sensors,
            report=report,
            prepared=request.prepared,
            seeds=request.seeds,
            deliver=deliver,
            early_exit=request.early_exit,
        )
        give_back(self.device)
        return measured


@cache
def tools(device: str) -> tuple[Timer, nvml.Device | None]:
    """The clock and the sensors of the device; neither needs foreign code."""
    return _cuda() if device == "cuda" else (CpuTimer(), None)


def _cuda() -> tuple[Timer, nvml.Device | None]:
    if not torch.cuda.is_available():
        raise EnvironmentRefused(
            f"torch {torch.__version__} sees no CUDA device",
            "run `nsabench doctor`, or measure on the CPU with --device cpu.",
        )
    from nsabench.worker.timing.cuda import CudaTimer

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return CudaTimer(), nvml.Device.by_torch(properties)
