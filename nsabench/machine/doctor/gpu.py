"""Will this device run undisturbed, at the clocks it is sold with?"""

from __future__ import annotations

from nsabench.machine.doctor.problem import Problem, error, note, warning
from nsabench.machine.environment.model import Environment, Gpu
from nsabench.machine.environment.nvml import THROTTLING

_GIB = 1 << 30
_LEAST_FREE_BYTES = 4 * _GIB
_BUSY_PERCENT = 10
# The context of our own worker may be among it, some 0.6 GiB.
_FOREIGN_MEMORY_BYTES = 2 * _GIB
_HOT_MARGIN_C = 5
_OLDEST_CAPABILITY = (8, 0)


def watched(environment: Environment) -> list[Gpu]:
    """The device in use, or all of them while that is not known."""
    used = [gpu for gpu in environment.gpus if gpu.used]
    return used or environment.gpus


def busy(gpu: Gpu) -> Problem | None:
    others = gpu.competing_processes or 0
    if others:
        competing_gib = (gpu.competing_memory_bytes or 0) / _GIB
        noun = "process" if others == 1 else "processes"
        what = f"{others} other {noun} on it, holding {competing_gib:.1f} GiB."
    elif (gpu.utilisation_percent or 0) >= _BUSY_PERCENT:
        # In a container the processes of others are out of sight, their load is not.
        what = f"it is {gpu.utilisation_percent} % busy before anything was measured."
    elif (gpu.memory_used_bytes or 0) >= _FOREIGN_MEMORY_BYTES:
        what = f"{(gpu.memory_used_bytes or 0) / _GIB:.1f} GiB of its memory are in use already."
    else:
        return None
    return warning(
        "gpu_busy",
        f"{_name(gpu)} is not ours alone: {what}",
        "Stop what else runs on it (`nvidia-smi` on the host lists it), or choose another device "
        "with CUDA_VISIBLE_DEVICES.",
    )


def throttled(gpu: Gpu) -> Problem | None:
    reasons = [reason for reason in gpu.clock_event_reasons if reason in THROTTLING]
    if not reasons:
        return None
    return warning(
        "gpu_throttled",
        f"{_name(gpu)} holds its clocks down now: {', '.join(reasons)}.",
        "Improve its cooling or power supply; see `nvidia-smi -q -d PERFORMANCE`.",
    )


def hot(gpu: Gpu) -> Problem | None:
    now, limit = gpu.temperature_c, gpu.temperature_slowdown_c
    if now is None or limit is None or now < limit - _HOT_MARGIN_C:
        return None
    return warning(
        "gpu_hot",
        f"{_name(gpu)} is at {now} °C and slows down at {limit} °C.",
        "Let it cool down, and check its fans and the air around it.",
    )


def power_limited(gpu: Gpu) -> Problem | None:
    limit, default = gpu.power_limit_w, gpu.power_default_w
    if limit is None or default is None or limit >= default - 1:
        return None
    return warning(
        "gpu_power_limited",
        f"{_name(gpu)} is limited to {limit:.0f} W; its default is {default:.0f} W.",
        f"Run `nvidia-smi -i {gpu.index} -pl {default:.0f}` as root, or keep in mind that the "
        "numbers hold for this limit.",
    )


def clocks_lowered(gpu: Gpu) -> Problem | None:
    clock, default = gpu.sm_clock_application_mhz, gpu.sm_clock_application_default_mhz
    if clock is None or default is None or clock >= default:
        return None
    return note(
        "gpu_clocks_lowered",
        f"{_name(gpu)} is set to {clock} MHz; its default is {default} MHz.",
        f"Run `nvidia-smi -i {gpu.index} -rac` as root to have the default.",
    )


def persistence_off(gpu: Gpu) -> Problem | None:
    if gpu.persistence is not False:
        return None
    return warning(
        "gpu_persistence_off",
        f"{_name(gpu)} is not in persistence mode: its driver unloads between processes, and "
        "clocks start from idle each time.",
        f"Run `nvidia-smi -i {gpu.index} -pm 1` as root on the host.",
    )


def mig(gpu: Gpu) -> Problem | None:
    if not gpu.mig:
        return None
    return warning(
        "gpu_mig",
        f"{_name(gpu)} is split by MIG: numbers hold for this slice, and neighbours share its "
        "power and heat.",
        f"Run `nvidia-smi -i {gpu.index} -mig 0` as root for numbers of the whole device.",
    )


def virtual(gpu: Gpu) -> Problem | None:
    if gpu.virtualisation != "vgpu":
        return None
    return warning(
        "gpu_virtual",
        f"{_name(gpu)} is a virtual GPU: others may be scheduled on the same hardware.",
        "Measure on a device that is passed through whole.",
    )


def compute_mode(gpu: Gpu) -> Problem | None:
    remedy = f"Run `nvidia-smi -i {gpu.index} -c DEFAULT` as root."
    if gpu.compute_mode == "prohibited":
        return error("gpu_prohibited", f"{_name(gpu)} admits no compute process.", remedy)
    if gpu.compute_mode in ("exclusive_process", "exclusive_thread"):
        return note(
            "gpu_exclusive",
            f"{_name(gpu)} admits one process at a time: a new worker may have to wait for the "
            "last one to be gone.",
            remedy,
        )
    return None


def memory_faults(gpu: Gpu) -> Problem | None:
    if gpu.ecc_uncorrected:
        count = gpu.ecc_uncorrected
        what = f"{count} uncorrected memory error{'s' if count > 1 else ''} since the driver loaded"
    elif gpu.remap_pending:
        what = "a failing memory row that waits to be remapped"
    else:
        return None
    return error(
        "gpu_memory_faults",
        f"{_name(gpu)} has {what}: its results cannot be trusted.",
        "Reset the device or reboot the host; if it comes back, replace the device.",
    )


def ecc_changed(gpu: Gpu) -> Problem | None:
    if gpu.ecc is None or gpu.ecc_default is None or gpu.ecc == gpu.ecc_default:
        return None
    now, usual = ("on", "off") if gpu.ecc else ("off", "on")
    return note(
        "gpu_ecc_changed",
        f"ECC of {_name(gpu)} is {now}, and its default is {usual}: bandwidth differs.",
        f"Run `nvidia-smi -i {gpu.index} -e {int(gpu.ecc_default)}` as root and reboot, or "
        "compare only with numbers taken the same way.",
    )


def too_old(gpu: Gpu) -> Problem | None:
    parts = (gpu.compute_capability or "").split(".")
    if len(parts) != 2 or (int(parts[0]), int(parts[1])) >= _OLDEST_CAPABILITY:
        return None
    return warning(
        "gpu_too_old",
        f"{_name(gpu)} has compute capability {gpu.compute_capability}: bf16 and many kernels "
        "need 8.0.",
        "Expect `unsupported` records, or use an Ampere or later device.",
    )


def little_memory(gpu: Gpu) -> Problem | None:
    if gpu.memory_bytes is None or gpu.memory_used_bytes is None:
        return None
    free = gpu.memory_bytes - gpu.memory_used_bytes
    if free >= _LEAST_FREE_BYTES:
        return None
    return warning(
        "gpu_little_memory",
        f"{_name(gpu)} has {free / _GIB:.1f} GiB free: large cases will end in `out_of_memory`.",
        "Free its memory, or expect these cases to be missing.",
    )


def narrow_link(gpu: Gpu) -> Problem | None:
    width, most = gpu.pcie_width, gpu.pcie_width_max
    if not width or not most or width >= most:
        return None
    return note(
        "gpu_narrow_link",
        f"{_name(gpu)} runs {width} of its {most} PCIe lanes.",
        "Reseat the card; kernel times do not depend on it, copies from the host do.",
    )


def _name(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.name})" if gpu.name else f"GPU {gpu.index}"


CHECKS = (
    memory_faults,
    compute_mode,
    busy,
    throttled,
    hot,
    power_limited,
    mig,
    virtual,
    persistence_off,
    little_memory,
    too_old,
    clocks_lowered,
    ecc_changed,
    narrow_link,
)
