"""Read the sensors of NVIDIA devices, once or regularly. A value that cannot be read is None."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

from nsabench.machine.clock import now_s
from nsabench.model.measurement import Conditions, Samples
from nsabench.model.vocabulary import PROBES, TIMED_PHASES

T = TypeVar("T")


# Bits of nvmlDeviceGetCurrentClocksEventReasons (NVML API reference).
CLOCK_EVENT_REASONS = {
    0x0000000000000001: "gpu_idle",
    0x0000000000000002: "applications_clocks_setting",
    0x0000000000000004: "sw_power_cap",
    0x0000000000000008: "hw_slowdown",
    0x0000000000000010: "sync_boost",
    0x0000000000000020: "sw_thermal_slowdown",
    0x0000000000000040: "hw_thermal_slowdown",
    0x0000000000000080: "hw_power_brake_slowdown",
    0x0000000000000100: "display_clock_setting",
}
POWER_CAP = "sw_power_cap"
_HARMLESS = {"gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting"}
INTERVAL_S = 0.02  # between two readings
THROTTLING = frozenset(CLOCK_EVENT_REASONS.values()) - _HARMLESS  # these lower the clocks
# Errors of a device that fell off the bus; newer drivers report "Unknown Error".
_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN)


@dataclass(frozen=True)
class Reading:
    sm_clock_mhz: int | None
    mem_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    clock_event_reasons: tuple[str, ...]


def failure() -> str | None:
    """Return NVML's reason why it cannot be used; None if it can."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return str(error)
    return None


def attempt(read: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return read(*arguments)
    except (pynvml.NVMLError, AttributeError, UnicodeDecodeError):
        return None


def _count_devices() -> int:
    return (attempt(pynvml.nvmlDeviceGetCount) or 0) if failure() is None else 0


class Device:
    """A device of NVML. torch numbers devices in another order, but has the same PCI bus ids."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    @classmethod
    def by_torch(cls, properties: Any) -> Device | None:
        """Return the device that `torch.cuda.get_device_properties` describes."""
        if failure() is not None:
            return None
        if hasattr(properties, "pci_bus_id"):
            p = properties
            bus_id = f"{p.pci_domain_id:04x}:{p.pci_bus_id:02x}:{p.pci_device_id:02x}.0"
            handle = attempt(pynvml.nvmlDeviceGetHandleByPciBusId, bus_id)
        else:  # an older torch
            uuid = f"GPU-{getattr(properties, 'uuid', '')}"
            handle = attempt(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        return cls(handle) if handle is not None else None

    @classmethod
    def list_all(cls) -> list[Device]:
        handles = (attempt(pynvml.nvmlDeviceGetHandleByIndex, i) for i in range(_count_devices()))
        return [cls(handle) for handle in handles if handle is not None]

    @classmethod
    def count_lost(cls) -> int:
        """Return how many devices fell off the bus: NVML counts them, but cannot read them."""
        lost = 0
        for index in range(_count_devices()):
            try:
                pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))
            except pynvml.NVMLError as error:
                lost += error.value in _LOST
        return lost

    @classmethod
    def visible(cls) -> Device | None:
        """Return the first device that CUDA_VISIBLE_DEVICES selects; None if unknown.

        The device is unknown if it is a MIG slice, or if CUDA may sort devices by speed.
        """
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        if failure() is not None:
            return None
        if first.isdecimal():
            kinds = {attempt(pynvml.nvmlDeviceGetName, device.handle) for device in cls.list_all()}
            if len(kinds) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
                return None
            handle = attempt(pynvml.nvmlDeviceGetHandleByIndex, int(first))
        else:
            handle = attempt(pynvml.nvmlDeviceGetHandleByUUID, first) if first else None
        return cls(handle) if handle is not None else None

    def name(self) -> str | None:
        return attempt(pynvml.nvmlDeviceGetName, self.handle)

    def index(self) -> int | None:
        return attempt(pynvml.nvmlDeviceGetIndex, self.handle)

    def read(self) -> Reading:
        h = self.handle
        power = attempt(pynvml.nvmlDeviceGetPowerUsage, h)
        bits = attempt(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, h) or 0
        return Reading(
            attempt(pynvml.nvmlDeviceGetClockInfo, h, pynvml.NVML_CLOCK_SM),
            attempt(pynvml.nvmlDeviceGetClockInfo, h, pynvml.NVML_CLOCK_MEM),
            attempt(pynvml.nvmlDeviceGetTemperature, h, pynvml.NVML_TEMPERATURE_GPU),
            power / 1000 if power is not None else None,
            tuple(name for bit, name in CLOCK_EVENT_REASONS.items() if bits & bit),
        )

    def process_ids(self) -> set[int]:
        processes = attempt(pynvml.nvmlDeviceGetComputeRunningProcesses, self.handle) or []
        return {process.pid for process in processes}


class ConditionMonitor:
    """Reads the sensors of a device in a thread while a case is measured.

    The supervisor and the worker each have one, since a worker could forge its readings.
    """

    def __init__(self, device: Device | None) -> None:
        self._device = device
        self._at: list[float] = []
        self._readings: list[Reading] = []
        self._begun = 0  # index of the first reading that counts
        self._ended: int | None = None  # index after the last reading that counts
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ConditionMonitor:
        if self._device is not None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="conditions")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        assert self._device is not None
        while True:
            self._at.append(now_s())
            self._readings.append(self._device.read())
            if self._stop.wait(INTERVAL_S):
                return

    def annotate(self, samples: Samples, start_s: float) -> None:
        for end_s in samples.at_s:  # the last reading before the end of a sample counts
            i = bisect_right(self._at, start_s + end_s) - 1
            clock = self._readings[max(i, 0)].sm_clock_mhz if self._readings else None
            samples.sm_clock_mhz.append(clock or 0)

    def at_phase(self, phase: str) -> None:
        # Readings before the first timed phase and in probes (untimed calls on unusual inputs) do
        # not count, since kernels may compile then.
        if phase in TIMED_PHASES and not self._begun:
            self._begun = len(self._readings)
        if phase != PROBES:
            self._ended = None
        elif self._ended is None:
            self._ended = len(self._readings)

    def summary(self, own: Collection[int] = ()) -> Conditions:
        """Summarise the readings that count. own: processes that do not compete with the worker."""
        readings = self._readings[self._begun : self._ended] or self._readings[-1:]
        if not readings or self._device is None:
            return Conditions()
        clocks = [r.sm_clock_mhz for r in readings if r.sm_clock_mhz]
        return Conditions(
            sm_clock_mhz_min=min(clocks, default=None),
            sm_clock_mhz_max=max(clocks, default=None),
            mem_clock_mhz=readings[-1].mem_clock_mhz,
            temperature_c_max=max(
                (r.temperature_c for r in readings if r.temperature_c), default=None
            ),
            power_w_max=max((r.power_w for r in readings if r.power_w), default=None),
            clock_event_reasons=sorted({x for r in readings for x in r.clock_event_reasons}),
            competing_processes=len(self._device.process_ids() - {os.getpid(), *own}),
        )
