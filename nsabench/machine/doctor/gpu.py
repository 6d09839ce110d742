"""Problems of a GPU: its health, other processes, its clocks and its mode."""

from __future__ import annotations

from collections.abc import Iterator

from nsabench.machine.doctor.problem import Problem, error, warning
from nsabench.machine.environment.model import Environment, Gpu
from nsabench.machine.environment.nvml import THROTTLING

_GIB = 1 << 30
_LEAST_FREE_BYTES = 4 * _GIB
_BUSY_PERCENT = 10
_FOREIGN_MEMORY_BYTES = 2 * _GIB  # the context of our own worker takes some 0.6 GiB
_OLDEST_CAPABILITY = (8, 0)


def examine(environment: Environment) -> Iterator[Problem]:
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


def _examine_health(gpu: Gpu, name: str) -> Iterator[Problem]:
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
            "Reset the device or reboot the host; if it comes back, replace the device.",
        )
    parts = (gpu.compute_capability or "").split(".")
    if len(parts) == 2 and (int(parts[0]), int(parts[1])) < _OLDEST_CAPABILITY:
        yield warning(
            "gpu_too_old",
            f"{name} has compute capability {gpu.compute_capability}: bf16 needs 8.0.",
            "Expect `unsupported` records, or use an Ampere or later device.",
        )


def _examine_use(gpu: Gpu, name: str) -> Iterator[Problem]:
    others, used, use = gpu.competing_processes or 0, gpu.memory_used_bytes or 0, ""
    if others:
        competing_gib = (gpu.competing_memory_bytes or 0) / _GIB
        noun = "process" if others == 1 else "processes"
        use = f"{others} other {noun} on it, holding {competing_gib:.1f} GiB."
    elif (gpu.utilisation_percent or 0) >= _BUSY_PERCENT:
        # A container hides other processes, but not their load.
        use = f"it is {gpu.utilisation_percent} % busy before anything was measured."
    elif used >= _FOREIGN_MEMORY_BYTES:
        use = f"{used / _GIB:.1f} GiB of its memory are in use already."
    if use:
        yield warning(
            "gpu_busy",
            f"{name} is not ours alone: {use}",
            "Stop what else runs on it (see `nvidia-smi`), or set CUDA_VISIBLE_DEVICES to another.",
        )
    if gpu.memory_bytes is not None and gpu.memory_bytes - used < _LEAST_FREE_BYTES:
        free_gib = (gpu.memory_bytes - used) / _GIB
        yield warning(
            "gpu_little_memory",
            f"{name} has {free_gib:.1f} GiB free: large cases will end in `out_of_memory`.",
            "Free its memory, or expect these cases to be missing.",
        )


def _examine_clocks(gpu: Gpu, name: str) -> Iterator[Problem]:
    reasons = [reason for reason in gpu.clock_event_reasons if reason in THROTTLING]
    if reasons:
        yield warning(
            "gpu_throttled",
            f"{name} holds its clocks down now: {', '.join(reasons)}.",
            "Improve its cooling or power supply; see `nvidia-smi -q -d PERFORMANCE`.",
        )
    limit, usual = gpu.power_limit_w, gpu.power_default_w
    if limit is not None and usual is not None and limit < usual - 1:
        yield warning(
            "gpu_power_limited",
            f"{name} is limited to {limit:.0f} W; its default is {usual:.0f} W.",
            f"Run `nvidia-smi -i {gpu.index} -pl {usual:.0f}` as root; connect a laptop's "
            "power supply.",
        )
    if gpu.persistence is False:
        yield warning(
            "gpu_persistence_off",
            f"{name} is not in persistence mode: clocks start from idle in each process.",
            f"Run `nvidia-smi -i {gpu.index} -pm 1` as root on the host.",
        )


def _examine_mode(gpu: Gpu, name: str) -> Iterator[Problem]:
    if gpu.compute_mode == "prohibited":
        yield error(
            "gpu_prohibited",
            f"{name} admits no compute process.",
            f"Run `nvidia-smi -i {gpu.index} -c DEFAULT` as root.",
        )
    if gpu.mig:
        yield warning(
            "gpu_mig",
            f"{name} is split by MIG: numbers hold for this slice, and others share its power.",
            f"Run `nvidia-smi -i {gpu.index} -mig 0` as root for numbers of the whole device.",
        )
