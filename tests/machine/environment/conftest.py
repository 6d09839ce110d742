"""A redactor with a known salt, and an NVML that shows one H200."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pynvml
import pytest

from nsabench.machine.environment.identifiers import Redactor


@pytest.fixture
def redactor() -> Redactor:
    return Redactor(plain=False, salt=b"a salt for the tests")


@pytest.fixture
def plain() -> Redactor:
    return Redactor(plain=True)


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces NVML. Keyword arguments replace answers; an exception is raised."""
    not_supported = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    sm = pynvml.NVML_CLOCK_SM
    answers: dict[str, object] = {
        "Init": None,
        "SystemGetDriverVersion": "580.159.03",
        "SystemGetCudaDriverVersion": 13000,
        "DeviceGetCount": 1,
        "DeviceGetHandleByIndex": "handle",
        "DeviceGetName": "NVIDIA H200",
        "DeviceGetUUID": "GPU-11111111-2222-3333-4444-555555555555",
        "DeviceGetSerial": "1650000000000",
        "DeviceGetPciInfo": SimpleNamespace(busId="00000000:19:00.0"),
        "DeviceGetVbiosVersion": "96.00.CF.00.01",
        "DeviceGetCudaComputeCapability": (9, 0),
        "DeviceGetMemoryInfo": SimpleNamespace(total=150 << 30, used=1 << 29),
        "DeviceGetMemoryBusWidth": 6144,
        "DeviceGetPowerUsage": 76_000,
        "DeviceGetPowerManagementLimit": 700_000,
        "DeviceGetPowerManagementDefaultLimit": 700_000,
        "DeviceGetPowerManagementLimitConstraints": [200_000, 700_000],
        "DeviceGetClockInfo": lambda _, domain: 345 if domain == sm else 3201,
        "DeviceGetMaxClockInfo": lambda _, domain: 1980 if domain == sm else 3201,
        "DeviceGetApplicationsClock": 1980,
        "DeviceGetDefaultApplicationsClock": not_supported,
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
        "DeviceGetCurrPcieLinkGeneration": 5,
        "DeviceGetMaxPcieLinkGeneration": 5,
        "DeviceGetCurrPcieLinkWidth": 16,
        "DeviceGetMaxPcieLinkWidth": 16,
    }

    def install(**changed: object) -> None:
        for name, answer in {**answers, **changed}.items():
            monkeypatch.setattr(pynvml, f"nvml{name}", _answering(answer))

    return install


def _answering(answer: object) -> Callable[..., object]:
    def function(*arguments: object) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer(*arguments) if callable(answer) else answer

    return function
