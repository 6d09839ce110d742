"""A plan, and an NVML that shows one H200."""

from types import SimpleNamespace

import pynvml
import pytest

from nsabench import sources
from nsabench.model.plan import ImplementationInfo
from nsabench.model.vocabulary import Role, Runs
from nsabench.planning import resolve


@pytest.fixture
def quick(tmp_path):
    kernels = tmp_path / "mine.py"
    kernels.write_text("# nothing\n")
    matrices = resolve.load_matrices(["quick"])
    ops = {case.op for matrix in matrices for case in matrix.cases}
    mine = [
        ImplementationInfo(
            op=op, name="mine", role=Role.CANDIDATE, devices=(Runs.CPU,), source="mine.py"
        )
        for op in sorted(ops)
    ]
    return resolve.resolve(
        matrices, mine, device="cpu", kernels=kernels, sources=sources.digests(kernels)
    )


@pytest.fixture
def h200(monkeypatch):
    """Return a function that replaces NVML. Its arguments replace answers by name. An answer that
    is an exception is raised."""
    not_supported = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    sm = pynvml.NVML_CLOCK_SM
    answers = {
        "Init": None,
        "SystemGetDriverVersion": "580.159.03",
        "SystemGetCudaDriverVersion": 13000,
        "DeviceGetCount": 1,
        "DeviceGetHandleByIndex": "handle",
        "DeviceGetName": "NVIDIA H200",
        "DeviceGetCudaComputeCapability": (9, 0),
        "DeviceGetMemoryInfo": SimpleNamespace(total=150 << 30, used=1 << 29),
        "DeviceGetPowerUsage": 76_000,
        "DeviceGetEnforcedPowerLimit": 700_000,
        "DeviceGetPowerManagementDefaultLimit": 700_000,
        "DeviceGetClockInfo": lambda _, domain: 345 if domain == sm else 3201,
        "DeviceGetMaxClockInfo": 1980,
        "DeviceGetCurrentClocksThrottleReasons": 1,
        "DeviceGetTemperature": 28,
        "DeviceGetTemperatureThreshold": 90,
        "DeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0),
        "DeviceGetComputeRunningProcesses": [],
        "DeviceGetCurrentEccMode": 1,
        "DeviceGetDefaultEccMode": 1,
        "DeviceGetTotalEccErrors": 0,
        "DeviceGetRemappedRows": (0, 0, 0, 0),
        "DeviceGetPersistenceMode": 1,
        "DeviceGetMigMode": [0, 0],
        "DeviceGetComputeMode": 0,
        "DeviceGetVirtualizationMode": not_supported,
    }

    def install(**changed):
        for name, answer in {**answers, **changed}.items():
            monkeypatch.setattr(pynvml, f"nvml{name}", _answering(answer))

    return install


def _answering(answer):
    def function(*arguments):
        if isinstance(answer, Exception):
            raise answer
        return answer(*arguments) if callable(answer) else answer

    return function
