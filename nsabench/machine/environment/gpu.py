"""Read the facts about the NVIDIA devices and their driver."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pynvml

from nsabench.machine.environment.model import Driver, Gpu
from nsabench.machine.environment.nvml import Device, attempt, failure
from nsabench.model.description import DescribedDevice

_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASS = "0x03"  # the PCI class of display controllers and of compute cards
_SM = (pynvml.NVML_CLOCK_SM,)


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000


# Each entry: a field of `Gpu`, the end of the name nvmlDeviceGet…, further arguments, a conversion.
_FIELDS: tuple[tuple[str, str, tuple[int, ...], Callable[[Any], Any]], ...] = (
    ("name", "Name", (), str),
    ("compute_capability", "CudaComputeCapability", (), lambda pair: f"{pair[0]}.{pair[1]}"),
    ("memory_bytes", "MemoryInfo", (), lambda memory: memory.total),
    ("memory_used_bytes", "MemoryInfo", (), lambda memory: memory.used),
    ("power_limit_w", "EnforcedPowerLimit", (), _watts),  # a laptop may enforce less than is set
    ("power_default_w", "PowerManagementDefaultLimit", (), _watts),
    ("sm_clock_max_mhz", "MaxClockInfo", _SM, int),
    ("utilisation_percent", "UtilizationRates", (), lambda load: load.gpu),
    ("ecc", "CurrentEccMode", (), bool),
    (
        "ecc_uncorrected",
        "TotalEccErrors",
        (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
        int,
    ),
    ("remap_pending", "RemappedRows", (), lambda rows: bool(rows[2])),
    ("remap_failed", "RemappedRows", (), lambda rows: bool(rows[3])),
    ("persistence", "PersistenceMode", (), bool),
    ("mig", "MigMode", (), lambda modes: bool(modes[0])),
    ("compute_mode", "ComputeMode", (), _COMPUTE_MODES.get),
)


def read_driver(root: Path = Path("/")) -> Driver:
    failed = failure()
    cuda = attempt(pynvml.nvmlSystemGetCudaDriverVersion) if failed is None else None
    return Driver(
        version=attempt(pynvml.nvmlSystemGetDriverVersion) if failed is None else None,
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        kernel_module=_kernel_module(root),
        nvml_failure=failed,
        pci_devices=_count_pci_devices(root),
        lost_gpus=Device.count_lost(),
    )


def read_gpus(described: DescribedDevice, absent: dict[str, str]) -> list[Gpu]:
    """Return all visible devices; the one that the worker described is marked as used."""
    gpus = [_read_gpu(index, d, described, absent) for index, d in enumerate(Device.list_all())]
    if described.name and not any(gpu.used for gpu in gpus):
        # Some hypervisors hide a device from NVML.
        absent["gpus.nvml"] = "NVML does not show the device that torch uses"
        gpus.append(Gpu(index=len(gpus), used=True, **_fields_from_torch(described)))
    return gpus


def _read_gpu(
    index: int, device: Device, described: DescribedDevice, absent: dict[str, str]
) -> Gpu:
    fields: dict[str, Any] = {}
    for field, function, arguments, convert in _FIELDS:
        try:
            answer = getattr(pynvml, "nvmlDeviceGet" + function)(device.handle, *arguments)
        except (pynvml.NVMLError, AttributeError, UnicodeDecodeError) as error:
            absent[f"gpus.{index}.{field}"] = str(error)
        else:
            fields[field] = convert(answer)
    processes = attempt(pynvml.nvmlDeviceGetComputeRunningProcesses, device.handle)
    if processes is not None:
        ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        others = [p for p in processes if p.pid not in ours]
        fields["competing_processes"] = len(others)
        fields["competing_memory_bytes"] = sum(p.usedGpuMemory or 0 for p in others)
    if described.nvml_index == index:
        fields |= {**_fields_from_torch(described), **fields, "used": True}
    reading = device.read()
    return Gpu(
        index=index,
        **fields,
        sm_clock_mhz=reading.sm_clock_mhz,
        temperature_c=reading.temperature_c,
        clock_event_reasons=list(reading.clock_event_reasons),
    )


def _fields_from_torch(described: DescribedDevice) -> dict[str, Any]:
    names = {"name", "compute_capability", "memory_bytes", "multiprocessors", "l2_bytes"}
    return described.model_dump(include=names)


def _kernel_module(root: Path) -> str | None:
    try:
        text = (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+[\d.]*)", text)
    return match[1] if match else None


def _count_pci_devices(root: Path) -> int:
    count = 0
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text().strip()
        except OSError:
            continue
        count += vendor == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_CLASS)
    return count
