"""Problems of the GPUs: their driver, health, clocks and mode, and other processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace

from nsabench.errors import EnvironmentRefused
from nsabench.machine.doctor.problem import MachineProblem, Severity, error, note, warning
from nsabench.machine.environment import nvml
from nsabench.machine.environment.gpu import read_driver
from nsabench.machine.environment.model import Driver, Environment, Gpu
from nsabench.machine.environment.pairs import OLDEST_DRIVER, numbers
from nsabench.machine.environment.provenance import read_container
from nsabench.model.plan import Device

# Each entry: a pattern for CUDA's message, the problem's code, what is wrong, and what to do.
_CUDA_ERRORS = (
    (
        r"error 802|not yet initialized",
        "fabric_manager",
        "the fabric manager of this host's NVSwitches does not run (error 802)",
        "Run `systemctl start nvidia-fabricmanager`; it must have the driver's version.",
    ),
    (
        r"error 999|unknown error",
        "nvidia_uvm",
        "CUDA reports an unknown error (999), as it does without the module nvidia_uvm",
        "Run `nvidia-modprobe -u -c 0` as root; a container needs /dev/nvidia-uvm.",
    ),
    (
        r"no cuda gpus|no cuda-capable|invalid device",
        "no_visible_gpu",
        "CUDA finds no device",
        "Name a device that `nvidia-smi -L` lists in CUDA_VISIBLE_DEVICES, or unset it.",
    ),
)


def examine_driver(environment: Environment) -> Iterator[MachineProblem]:
    driver = environment.driver
    if not environment.gpus:
        unusable = explain_unusable(driver, environment.container.shut_in)
        yield unusable or _explain_absent(environment)
    elif driver.lost_gpus:
        yield replace(_explain_lost(driver), severity=Severity.WARNING)
    too_old = list(_check_version(environment))
    yield from too_old
    hidden = environment.run.variables.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles")
    # In these cases, another problem already explains why CUDA does not work.
    explained = not environment.gpus or too_old or hidden
    if environment.software.cuda_usable is False and not explained:
        yield from _explain_cuda(environment)
    if "gpus.nvml" in environment.absent:
        yield warning(
            "gpu_unwatched",
            "NVML does not show the GPU that torch uses: its clocks cannot be watched.",
            "Give this process access to NVML (`nvidia-smi` must list the device).",
        )


def _explain_cuda(environment: Environment) -> Iterator[MachineProblem]:
    if not environment.software.torch_cuda:
        return  # this torch was built for CPUs
    why = environment.absent.get("software.cuda_usable", "torch gives no reason")
    for pattern, code, what, remedy in _CUDA_ERRORS:
        if re.search(pattern, why, re.IGNORECASE):
            yield error(code, f"torch cannot use the GPU: {what}.", remedy)
            return
    yield error(
        "cuda_unusable",
        f"torch cannot use the GPU: {why}.",
        "Run `nvidia-smi`; in a container check that it was started with `--gpus all`.",
    )


def _explain_absent(environment: Environment) -> MachineProblem:
    if environment.run.device == "cuda":
        return error(
            "no_gpu",
            "The run asks for a CUDA device, but this machine has no NVIDIA GPU.",
            "Run on a GPU host, or with `--device cpu`.",
        )
    return note(
        "no_gpu",
        "There is no NVIDIA GPU: Triton kernels are interpreted, and not timed.",
        "Run on a GPU host to time them.",
    )


def _explain_lost(driver: Driver) -> MachineProblem:
    return error(
        "gpu_lost",
        f"NVML reports that {driver.lost_gpus} of the GPUs fell off the bus.",
        "Reboot the host, and look for Xid 79 in `dmesg`. If it happens again, replace the device.",
    )


def explain_unusable(driver: Driver, shut_in: bool) -> MachineProblem | None:
    """Return why a GPU cannot be used; None without a GPU. shut_in: whether in a container."""
    failed = driver.nvml_failure or "NVML shows no device"
    if "mismatch" in failed.lower():
        return error(
            "driver_mismatch",
            "The driver's kernel module and its libraries have different versions.",
            "Reboot the host.",
        )
    if driver.lost_gpus:
        return _explain_lost(driver)
    if driver.kernel_module is None and not driver.pci_devices:
        return None
    if shut_in:
        return error(
            "gpu_not_passed",
            "The host has an NVIDIA GPU, but this container does not see it.",
            "Run `docker run --gpus all`, which needs the NVIDIA Container Toolkit.",
        )
    if driver.kernel_module is None:
        return error(
            "driver_missing",
            "There is an NVIDIA GPU on the PCI bus, but no driver is loaded.",
            f"Install the NVIDIA driver, {OLDEST_DRIVER[max(OLDEST_DRIVER)]} or newer.",
        )
    return error(
        "driver_broken",
        f"The NVIDIA driver {driver.kernel_module} is loaded but does not answer: {failed}.",
        "Run `nvidia-smi` and look into `dmesg` for lines with NVRM or Xid.",
    )


def choose_device(requested: str) -> Device:
    """Return the device to measure on.

    Raises `EnvironmentRefused` for "auto" on a host with a GPU that cannot be used.
    """
    if requested == "cuda" or requested == "cpu":
        return requested  # type: ignore[return-value]
    if nvml.Device.list_all():
        return "cuda"
    unusable = explain_unusable(read_driver(), read_container(os.environ, {}).shut_in)
    if unusable is not None:
        raise EnvironmentRefused(
            unusable.what.removesuffix("."),
            f"{unusable.remedy} To measure on the CPU instead: `--device cpu`.",
        )
    return "cpu"


def _check_version(environment: Environment) -> Iterator[MachineProblem]:
    software = environment.software
    installed, cuda = environment.driver.version, software.torch_cuda
    if installed is None or cuda is None or software.cuda_usable:
        return  # CUDA can work on an older driver, with a forward-compatibility package
    major = numbers(installed)[0] if numbers(installed) else None
    needed = OLDEST_DRIVER.get(numbers(cuda)[0])
    if needed is None or major is None or major >= needed:
        return
    fitting = [cuda_major for cuda_major, oldest in OLDEST_DRIVER.items() if major >= oldest]
    instead = f", or install a torch built for CUDA {max(fitting)}" if fitting else ""
    yield error(
        "driver_too_old",
        f"The driver {installed} is too old for the CUDA {cuda} that this torch was built for.",
        f"Update the driver to {needed} or newer{instead}.",
    )


_GIB = 1 << 30
_LEAST_FREE_BYTES = 4 * _GIB
_BUSY_PERCENT = 10
_FOREIGN_MEMORY_BYTES = 2 * _GIB  # the worker's own CUDA context takes about 0.6 GiB
_OLDEST_CAPABILITY = (8, 0)


def examine_devices(environment: Environment) -> Iterator[MachineProblem]:
    for gpu in list_watched(environment):
        name = f"GPU {gpu.index} ({gpu.name})" if gpu.name else f"GPU {gpu.index}"
        yield from _examine_health(gpu, name)
        yield from _examine_use(gpu, name)
        yield from _examine_clocks(gpu, name)
        yield from _examine_mode(gpu, name)


def list_watched(environment: Environment) -> list[Gpu]:
    """Return the device in use, or all devices if that is unknown."""
    used = [gpu for gpu in environment.gpus if gpu.used]
    return used or environment.gpus


def _examine_health(gpu: Gpu, name: str) -> Iterator[MachineProblem]:
    faults = ""
    if count := gpu.ecc_uncorrected:
        plural = "s" if count > 1 else ""
        faults = f"{count} uncorrected memory error{plural} since the driver loaded"
    elif gpu.remap_failed:
        faults = "a failing memory row that could not be remapped"
    elif gpu.remap_pending:
        faults = "a failing memory row that waits to be remapped"
    if faults:
        yield error(
            "gpu_memory_faults",
            f"{name} has {faults}: its results cannot be trusted.",
            "Reset the device or reboot the host. If the fault comes back, replace the device.",
        )
    parts = (gpu.compute_capability or "").split(".")
    if len(parts) == 2 and (int(parts[0]), int(parts[1])) < _OLDEST_CAPABILITY:
        yield warning(
            "gpu_too_old",
            f"{name} has compute capability {gpu.compute_capability}: bf16 needs 8.0.",
            "Expect `unsupported` records, or use an Ampere or later device.",
        )


def _examine_use(gpu: Gpu, name: str) -> Iterator[MachineProblem]:
    others, used, use = gpu.competing_processes or 0, gpu.memory_used_bytes or 0, ""
    if others:
        competing_gib = (gpu.competing_memory_bytes or 0) / _GIB
        noun = "process" if others == 1 else "processes"
        use = f"{others} other {noun} on it, with {competing_gib:.1f} GiB of its memory."
    elif (gpu.utilisation_percent or 0) >= _BUSY_PERCENT:
        # A container hides other processes, but not their load.
        use = f"it is {gpu.utilisation_percent} % busy before the run begins."
    elif used >= _FOREIGN_MEMORY_BYTES:
        use = f"{used / _GIB:.1f} GiB of its memory are already in use."
    if use:
        yield warning(
            "gpu_busy",
            f"{name} is shared with other work: {use}",
            "Stop the other work (see `nvidia-smi`), or set CUDA_VISIBLE_DEVICES to another GPU.",
        )
    if gpu.memory_bytes is not None and gpu.memory_bytes - used < _LEAST_FREE_BYTES:
        free_gib = (gpu.memory_bytes - used) / _GIB
        yield warning(
            "gpu_little_memory",
            f"{name} has {free_gib:.1f} GiB free: large cases will end in `out_of_memory`.",
            "Free its memory, or expect these cases to be missing.",
        )


def _examine_clocks(gpu: Gpu, name: str) -> Iterator[MachineProblem]:
    reasons = [reason for reason in gpu.clock_event_reasons if reason in nvml.THROTTLING]
    if reasons:
        yield warning(
            "gpu_throttled",
            f"{name} lowers its clocks at the moment: {', '.join(reasons)}.",
            "Improve its cooling or power supply; see `nvidia-smi -q -d PERFORMANCE`.",
        )
    limit, usual = gpu.power_limit_w, gpu.power_default_w
    if limit is not None and usual is not None and limit < usual - 1:
        yield warning(
            "gpu_power_limited",
            f"{name} is limited to {limit:.0f} W; its default is {usual:.0f} W.",
            f"Run `nvidia-smi -i {gpu.index} -pl {usual:.0f}` as root; on a laptop, connect the "
            "power supply.",
        )
    if gpu.persistence is False:
        yield warning(
            "gpu_persistence_off",
            f"{name} is not in persistence mode: each process starts at idle clocks.",
            f"Run `nvidia-smi -i {gpu.index} -pm 1` as root on the host.",
        )


def _examine_mode(gpu: Gpu, name: str) -> Iterator[MachineProblem]:
    if gpu.compute_mode == "prohibited":
        yield error(
            "gpu_prohibited",
            f"{name} refuses compute processes (compute mode `prohibited`).",
            f"Run `nvidia-smi -i {gpu.index} -c DEFAULT` as root.",
        )
    if gpu.mig:
        yield warning(
            "gpu_mig",
            f"{name} is split by MIG: figures are of one slice, and all slices share its power.",
            f"Run `nvidia-smi -i {gpu.index} -mig 0` as root for figures of the whole device.",
        )
