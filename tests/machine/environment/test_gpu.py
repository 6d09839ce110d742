"""Devices and the driver are read through a replaced NVML."""

import os
from types import SimpleNamespace

import pynvml
import pytest

from nsabench.machine.doctor import Severity, examine
from nsabench.machine.environment.collect import collect
from nsabench.machine.environment.gpu import read_driver, read_gpus
from nsabench.model.description import DescribedDevice

H200 = DescribedDevice(
    type="cuda",
    name="NVIDIA H200",
    compute_capability="9.0",
    multiprocessors=132,
    l2_bytes=60 << 20,
    nvml_index=0,
)


def test_reads_the_whole_device(h200):
    h200()
    absent = {}
    [gpu] = read_gpus(H200, absent)
    assert gpu.used
    assert (gpu.name, gpu.compute_capability) == ("NVIDIA H200", "9.0")
    assert (gpu.power_limit_w, gpu.power_default_w) == (700, 700)
    assert (gpu.sm_clock_mhz, gpu.sm_clock_max_mhz) == (345, 1980)
    assert gpu.clock_event_reasons == ["gpu_idle"]
    assert (gpu.ecc, gpu.persistence, gpu.mig, gpu.compute_mode) == (True, True, False, "default")
    assert (gpu.multiprocessors, gpu.l2_bytes) == (132, 60 << 20)
    assert absent == {}


@pytest.mark.parametrize(("index", "used"), [(0, [True, False]), (1, [False, True])])
def test_which_device_is_used(h200, index, used):
    h200(DeviceGetCount=2)
    gpus = read_gpus(H200.model_copy(update={"nvml_index": index}), {})
    assert [gpu.used for gpu in gpus] == used
    assert gpus[index].multiprocessors == 132
    assert gpus[1 - index].multiprocessors is None


def test_our_own_processes_do_not_compete(h200):
    ours = SimpleNamespace(pid=os.getpid(), usedGpuMemory=1 << 30)
    theirs = SimpleNamespace(pid=1, usedGpuMemory=2 << 30)
    hidden = SimpleNamespace(pid=2, usedGpuMemory=None)
    h200(DeviceGetComputeRunningProcesses=[ours, theirs, hidden])
    [gpu] = read_gpus(DescribedDevice(), {})
    assert (gpu.competing_processes, gpu.competing_memory_bytes) == (2, 2 << 30)


def test_a_device_that_only_torch_sees(h200):
    h200(Init=pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    absent = {}
    [gpu] = read_gpus(H200.model_copy(update={"nvml_index": None}), absent)
    assert (gpu.used, gpu.name, gpu.multiprocessors) == (True, "NVIDIA H200", 132)
    assert "gpus.nvml" in absent


def test_driver(h200, tmp_path):
    h200()
    driver = read_driver(tmp_path)
    assert (driver.version, driver.cuda) == ("580.159.03", "13.0")
    assert (driver.nvml_failure, driver.kernel_module, driver.pci_devices) == (None, None, 0)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.104.05  Release Build",
    ],
)
def test_hardware_without_a_library(h200, tmp_path, line):
    h200(Init=pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(line + "\nGCC version:  gcc 12.3.0\n")
    # A compute card, its audio function, and a network card.
    for name, vendor, kind in (
        ("19", "0x10de", "0x030200"),
        ("19.1", "0x10de", "0x040300"),
        ("20", "0x15b3", "0x020000"),
    ):
        device = tmp_path / "sys/bus/pci/devices" / name
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(kind + "\n")
    driver = read_driver(tmp_path)
    assert driver.version is None
    assert driver.nvml_failure == "NVML Shared Library Not Found"
    assert (driver.kernel_module, driver.pci_devices) == ("535.104.05", 1)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN])
def test_a_device_that_fell_off_the_bus_is_counted(h200, code):
    """Newer drivers report this error as unknown."""

    def open_by_index(index):
        if index == 1:
            raise pynvml.NVMLError(code)
        return "handle"

    h200(DeviceGetCount=2, DeviceGetHandleByIndex=open_by_index)
    assert read_driver().lost_gpus == 1
    assert len(read_gpus(H200, {})) == 1


LOST = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


@pytest.mark.parametrize(
    ("answers", "code", "severity"),
    [
        ({"DeviceGetRemappedRows": (0, 0, 0, 1)}, "gpu_memory_faults", Severity.ERROR),
        ({"DeviceGetRemappedRows": (0, 0, 1, 0)}, "gpu_memory_faults", Severity.ERROR),
        ({"DeviceGetEnforcedPowerLimit": 80_000}, "gpu_power_limited", Severity.WARNING),
        ({"DeviceGetHandleByIndex": LOST}, "gpu_lost", Severity.ERROR),
    ],
)
def test_what_nvml_says_reaches_the_doctor(h200, tmp_path, answers, code, severity):
    h200(**answers)
    problems = {p.code: p for p in examine(collect(None, None), results=tmp_path)}
    assert problems[code].severity is severity and problems[code].remedy
