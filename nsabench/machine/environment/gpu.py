"""The NVIDIA devices and their driver."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import psutil
import pynvml

from nsabench.machine.environment.identifiers import Redactor
from nsabench.machine.environment.model import Driver, Gpu
from nsabench.machine.environment.nvml import Device, attempt, failure
from nsabench.model.description import Described, DescribedDevice

_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
_VIRTUALISATIONS = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host_vgpu", 4: "host_vsga"}
_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASS = "0x03"  # display controllers, to which compute cards belong


def read_driver(root: Path = Path("/")) -> Driver:
    """Read the driver from NVML and the kernel. root: the folder of /proc and /sys."""
    failed = failure()
    cuda = attempt(pynvml.nvmlSystemGetCudaDriverVersion) if failed is None else None
    return Driver(
        version=_text(attempt(pynvml.nvmlSystemGetDriverVersion)) if failed is None else None,
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        kernel_module=_kernel_module(root),
        nvml_failure=failed,
        pci_devices=_pci_devices(root),
    )


def read_gpus(described: Described | None, redactor: Redactor, absent: dict[str, str]) -> list[Gpu]:
    """Return all visible devices. The one that the worker described is marked as used."""
    facts = described.device if described is not None else DescribedDevice()
    gpus = [_read_gpu(index, d, facts, redactor, absent) for index, d in enumerate(Device.all())]
    if facts.name and not any(gpu.used for gpu in gpus):
        # Some hypervisors hide a device from NVML that torch sees.
        absent["gpus.nvml"] = "NVML does not show the device that torch uses"
        gpus.append(
            Gpu(
                index=len(gpus),
                used=True,
                name=facts.name,
                compute_capability=facts.compute_capability,
                memory_bytes=facts.memory_bytes,
                **_torch_fields(facts),
            )
        )
    return gpus


def _read_gpu(
    index: int,
    device: Device,
    facts: DescribedDevice,
    redactor: Redactor,
    absent: dict[str, str],
) -> Gpu:
    handle = device.handle

    def ask(field: str, function: str, *arguments: Any) -> Any:
        """Return the answer, or None with the reason in `absent`."""
        try:
            return getattr(pynvml, "nvmlDeviceGet" + function)(handle, *arguments)
        except (pynvml.NVMLError, AttributeError, UnicodeDecodeError) as error:
            absent[f"gpus.{index}.{field}"] = str(error)
            return None

    def watts(field: str, function: str) -> float | None:
        milliwatts = ask(field, function)
        return milliwatts / 1000 if milliwatts is not None else None

    uuid = _text(ask("uuid", "UUID"))
    pci = ask("pci_bus_id", "PciInfo")
    bus_id = _text(pci.busId) if pci is not None else None
    used = facts.nvml_index == index
    capability = ask("compute_capability", "CudaComputeCapability")
    memory = ask("memory", "MemoryInfo")
    limits = ask("power_limits", "PowerManagementLimitConstraints")
    ecc = ask("ecc", "CurrentEccMode")
    ecc_default = ask("ecc_default", "DefaultEccMode")
    ecc_errors = None
    if ecc:
        ecc_errors = ask(
            "ecc_uncorrected",
            "TotalEccErrors",
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        )
    remapped = ask("remap_pending", "RemappedRows")
    persistence = ask("persistence", "PersistenceMode")
    mig = ask("mig", "MigMode")
    mode = ask("compute_mode", "ComputeMode")
    virtual = ask("virtualisation", "VirtualizationMode")
    load = ask("utilisation", "UtilizationRates")
    competing = _competing(ask("processes", "ComputeRunningProcesses"))
    reading = device.read()
    sm, mem = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM
    return Gpu(
        index=index,
        used=used,
        name=_text(ask("name", "Name")),
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        vbios=_text(ask("vbios", "VbiosVersion")),
        uuid=redactor.identifier("uuid", uuid),
        serial=redactor.identifier("serial", _text(ask("serial", "Serial"))),
        pci_bus_id=redactor.identifier("pci", bus_id),
        memory_bytes=memory.total if memory is not None else None,
        memory_used_bytes=memory.used if memory is not None else None,
        memory_bus_bits=ask("memory_bus", "MemoryBusWidth"),
        power_w=reading.power_w,
        power_limit_w=watts("power_limit", "PowerManagementLimit"),
        power_default_w=watts("power_default", "PowerManagementDefaultLimit"),
        power_min_w=limits[0] / 1000 if limits else None,
        power_max_w=limits[1] / 1000 if limits else None,
        sm_clock_mhz=reading.sm_clock_mhz,
        sm_clock_max_mhz=ask("sm_clock_max", "MaxClockInfo", sm),
        sm_clock_application_mhz=ask("sm_clock_application", "ApplicationsClock", sm),
        sm_clock_application_default_mhz=ask(
            "sm_clock_application_default", "DefaultApplicationsClock", sm
        ),
        mem_clock_mhz=reading.mem_clock_mhz,
        mem_clock_max_mhz=ask("mem_clock_max", "MaxClockInfo", mem),
        clock_event_reasons=list(reading.clock_event_reasons),
        temperature_c=reading.temperature_c,
        temperature_slowdown_c=ask(
            "temperature_slowdown",
            "TemperatureThreshold",
            pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        ),
        utilisation_percent=load.gpu if load is not None else None,
        competing_processes=competing[0] if competing else None,
        competing_memory_bytes=competing[1] if competing else None,
        ecc=bool(ecc) if ecc is not None else None,
        ecc_default=bool(ecc_default) if ecc_default is not None else None,
        ecc_uncorrected=ecc_errors,
        remap_pending=bool(remapped[2]) if remapped else None,
        persistence=bool(persistence) if persistence is not None else None,
        mig=bool(mig[0]) if mig else None,
        compute_mode=_COMPUTE_MODES.get(mode) if mode is not None else None,
        virtualisation=_VIRTUALISATIONS.get(virtual) if virtual is not None else None,
        pcie_generation=ask("pcie_generation", "CurrPcieLinkGeneration"),
        pcie_generation_max=ask("pcie_generation_max", "MaxPcieLinkGeneration"),
        pcie_width=ask("pcie_width", "CurrPcieLinkWidth"),
        pcie_width_max=ask("pcie_width_max", "MaxPcieLinkWidth"),
        **(_torch_fields(facts) if used else {}),
    )


def _torch_fields(facts: DescribedDevice) -> dict[str, Any]:
    return {
        "multiprocessors": facts.multiprocessors,
        "l2_bytes": facts.l2_bytes,
        "shared_memory_bytes": facts.shared_memory_bytes,
    }


def _competing(processes: list[Any] | None) -> tuple[int, int] | None:
    """Return the number of other processes on the device, and their memory in bytes."""
    if processes is None:
        return None
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    others = [p for p in processes if p.pid not in ours]
    return len(others), sum(p.usedGpuMemory or 0 for p in others)


def _kernel_module(root: Path) -> str | None:
    try:
        text = (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+[\d.]*)", text)
    return match[1] if match else None


def _pci_devices(root: Path) -> int:
    count = 0
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text().strip()
        except OSError:
            continue
        count += vendor == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_CLASS)
    return count


def _text(value: Any) -> str | None:
    """Early versions of nvidia-ml-py answer with bytes."""
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
