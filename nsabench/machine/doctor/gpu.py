"""Problems of a GPU: its memory, who else uses it, and what changes its clocks."""

from __future__ import annotations

from collections.abc import Iterator

from nsabench.machine.doctor.problem import Problem, error, note, warning
from nsabench.machine.environment.model import Environment, Gpu
from nsabench.machine.environment.nvml import THROTTLING

_GIB = 1 << 30
_LEAST_FREE_BYTES = 4 * _GIB
_BUSY_PERCENT = 10
_FOREIGN_MEMORY_BYTES = 2 * _GIB  # the context of our own worker takes some 0.6 GiB
_HOT_MARGIN_C = 5
_OLDEST_CAPABILITY = (8, 0)


def examine(environment: Environment) -> Iterator[Problem]:
    for gpu in watched(environment):
        name = f"GPU {gpu.index} ({gpu.name})" if gpu.name else f"GPU {gpu.index}"
        yield from _refusing(gpu, name)
        yield from _shared(gpu, name)
        yield from _slowed(gpu, name)
        yield from _limited(gpu, name)
        yield from _set_otherwise(gpu, name)


def watched(environment: Environment) -> list[Gpu]:
    """Return the device in use, or all devices while that is not known."""
    used = [gpu for gpu in environment.gpus if gpu.used]
    return used or environment.gpus


def _refusing(gpu: Gpu, name: str) -> Iterator[Problem]:
    faults = None
    if gpu.ecc_uncorrected:
        count = gpu.ecc_uncorrected
        faults = (
            f"{count} uncorrected memory error{'s' if count > 1 else ''} since the driver loaded"
        )
    elif gpu.remap_pending:
        faults = "a failing memory row that waits to be remapped"
    if faults is not None:
        yield error(
            "gpu_memory_faults",
            f"{name} has {faults}: its results cannot be trusted.",
            "Reset the device or reboot the host; if it comes back, replace the device.",
        )
    if gpu.compute_mode == "prohibited":
        yield error(
            "gpu_prohibited",
            f"{name} admits no compute process.",
            f"Run `nvidia-smi -i {gpu.index} -c DEFAULT` as root.",
        )
    elif gpu.compute_mode in ("exclusive_process", "exclusive_thread"):
        yield note(
            "gpu_exclusive",
            f"{name} admits one process at a time: a new worker may have to wait for the last one "
            "to be gone.",
            f"Run `nvidia-smi -i {gpu.index} -c DEFAULT` as root.",
        )


def _shared(gpu: Gpu, name: str) -> Iterator[Problem]:
    others, use = gpu.competing_processes or 0, ""
    if others:
        competing_gib = (gpu.competing_memory_bytes or 0) / _GIB
        noun = "process" if others == 1 else "processes"
        use = f"{others} other {noun} on it, holding {competing_gib:.1f} GiB."
    elif (gpu.utilisation_percent or 0) >= _BUSY_PERCENT:
        # In a container the processes of others are hidden, but their load is not.
        use = f"it is {gpu.utilisation_percent} % busy before anything was measured."
    elif (gpu.memory_used_bytes or 0) >= _FOREIGN_MEMORY_BYTES:
        use = f"{(gpu.memory_used_bytes or 0) / _GIB:.1f} GiB of its memory are in use already."
    if use:
        yield warning(
            "gpu_busy",
            f"{name} is not ours alone: {use}",
            "Stop what else runs on it (`nvidia-smi` on the host lists it), or choose another "
            "device with CUDA_VISIBLE_DEVICES.",
        )


def _slowed(gpu: Gpu, name: str) -> Iterator[Problem]:
    reasons = [reason for reason in gpu.clock_event_reasons if reason in THROTTLING]
    if reasons:
        yield warning(
            "gpu_throttled",
            f"{name} holds its clocks down now: {', '.join(reasons)}.",
            "Improve its cooling or power supply; see `nvidia-smi -q -d PERFORMANCE`.",
        )
    now, slowdown = gpu.temperature_c, gpu.temperature_slowdown_c
    if now is not None and slowdown is not None and now >= slowdown - _HOT_MARGIN_C:
        yield warning(
            "gpu_hot",
            f"{name} is at {now} °C and slows down at {slowdown} °C.",
            "Let it cool down, and check its fans and the air around it.",
        )
    limit, usual = gpu.power_limit_w, gpu.power_default_w
    if limit is not None and usual is not None and limit < usual - 1:
        yield warning(
            "gpu_power_limited",
            f"{name} is limited to {limit:.0f} W; its default is {usual:.0f} W.",
            f"Run `nvidia-smi -i {gpu.index} -pl {usual:.0f}` as root, or keep in mind that the "
            "numbers hold for this limit.",
        )
    if gpu.mig:
        yield warning(
            "gpu_mig",
            f"{name} is split by MIG: numbers hold for this slice, and neighbours share its power "
            "and heat.",
            f"Run `nvidia-smi -i {gpu.index} -mig 0` as root for numbers of the whole device.",
        )
    if gpu.virtualisation == "vgpu":
        yield warning(
            "gpu_virtual",
            f"{name} is a virtual GPU: others may be scheduled on the same hardware.",
            "Measure on a device that is passed through whole.",
        )
    if gpu.persistence is False:
        yield warning(
            "gpu_persistence_off",
            f"{name} is not in persistence mode: its driver unloads between processes, and clocks "
            "start from idle each time.",
            f"Run `nvidia-smi -i {gpu.index} -pm 1` as root on the host.",
        )


def _limited(gpu: Gpu, name: str) -> Iterator[Problem]:
    if gpu.memory_bytes is not None and gpu.memory_used_bytes is not None:
        free = gpu.memory_bytes - gpu.memory_used_bytes
        if free < _LEAST_FREE_BYTES:
            yield warning(
                "gpu_little_memory",
                f"{name} has {free / _GIB:.1f} GiB free: large cases will end in `out_of_memory`.",
                "Free its memory, or expect these cases to be missing.",
            )
    parts = (gpu.compute_capability or "").split(".")
    if len(parts) == 2 and (int(parts[0]), int(parts[1])) < _OLDEST_CAPABILITY:
        yield warning(
            "gpu_too_old",
            f"{name} has compute capability {gpu.compute_capability}: bf16 and many kernels need "
            "8.0.",
            "Expect `unsupported` records, or use an Ampere or later device.",
        )


def _set_otherwise(gpu: Gpu, name: str) -> Iterator[Problem]:
    clock, default = gpu.sm_clock_application_mhz, gpu.sm_clock_application_default_mhz
    if clock is not None and default is not None and clock < default:
        yield note(
            "gpu_clocks_lowered",
            f"{name} is set to {clock} MHz; its default is {default} MHz.",
            f"Run `nvidia-smi -i {gpu.index} -rac` as root to have the default.",
        )
    if gpu.ecc is not None and gpu.ecc_default is not None and gpu.ecc != gpu.ecc_default:
        now, usual = ("on", "off") if gpu.ecc else ("off", "on")
        yield note(
            "gpu_ecc_changed",
            f"ECC of {name} is {now}, and its default is {usual}: bandwidth differs.",
            f"Run `nvidia-smi -i {gpu.index} -e {int(gpu.ecc_default)}` as root and reboot, or "
            "compare only with numbers taken the same way.",
        )
