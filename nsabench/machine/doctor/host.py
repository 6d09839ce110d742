"""Does the machine around the device leave it, and us, in peace?"""

from __future__ import annotations

from nsabench.machine.doctor.problem import Problem, error, note, warning
from nsabench.machine.environment.model import Environment

_GIB = 1 << 30
_LEAST_MEMORY_BYTES = 2 * _GIB
_LITTLE_DISK_BYTES = 2 * _GIB
_LEAST_DISK_BYTES = _GIB // 4
_FEWEST_CPUS = 2.0
# These drivers scale by demand under a governor called "powersave", unless told to save energy.
_SELF_SCALING = frozenset({"intel_pstate", "amd-pstate-epp"})


def low_memory(environment: Environment) -> Problem | None:
    host = environment.host
    known = [b for b in (host.ram_available_bytes, host.cgroup.memory_bytes) if b is not None]
    if not known or min(known) >= _LEAST_MEMORY_BYTES:
        return None
    return warning(
        "low_memory",
        f"Only {min(known) / _GIB:.1f} GiB of memory are to be had: the kernel may kill workers.",
        f"Free some, or raise the container's limit to {_LEAST_MEMORY_BYTES // _GIB} GiB or more.",
    )


def few_cpus(environment: Environment) -> Problem | None:
    host = environment.host
    known = [n for n in (host.affinity_threads, host.cgroup.cpus) if n is not None]
    if not known or min(known) >= _FEWEST_CPUS:
        return None
    return warning(
        "few_cpus",
        f"This process may use {min(known):g} CPU: the worker has to share it, and launches are "
        "delayed.",
        "Give it two or more (`docker run --cpus`, `taskset`, the job's request).",
    )


def busy_host(environment: Environment) -> Problem | None:
    load, threads = environment.host.load_1m, environment.host.threads
    if load is None or threads is None or load <= threads:
        return None
    return warning(
        "busy_host",
        f"The host is busy: load {load:.1f} on {threads} threads; launches and CPU times suffer.",
        "Wait until other work is done.",
    )


def no_sandbox(environment: Environment) -> Problem | None:
    held = environment.sandbox
    if held is None or held.startswith("files"):
        return None
    return warning(
        "no_sandbox",
        f"Kernels are not kept from this user's files, runs and keys: {held}.",
        "Measure kernels of people you trust, or on Linux 5.13 or newer with Landlock among the "
        "modules of /sys/kernel/security/lsm.",
    )


def powersave(environment: Environment) -> Problem | None:
    host = environment.host
    if host.governor != "powersave":
        return None
    if host.frequency_driver in _SELF_SCALING and host.energy_preference not in (
        "power",
        "balance_power",
    ):
        return None
    what = "The CPU governor is `powersave`: CPU times are not those of the full clock."
    remedy = "Run `cpupower frequency-set -g performance` as root."
    return (note if environment.gpus else warning)("cpu_powersave", what, remedy)


def on_battery(environment: Environment) -> Problem | None:
    if not environment.host.on_battery:
        return None
    return warning(
        "on_battery", "This machine runs on its battery, which lowers clocks.", "Plug it in."
    )


def wsl(environment: Environment) -> Problem | None:
    if not environment.host.wsl:
        return None
    return note(
        "wsl",
        "This is WSL: the GPU is shared with the Windows desktop, and clock events are not told.",
        "Measure under Linux itself for numbers to be published.",
    )


def root_user(environment: Environment) -> Problem | None:
    if not environment.host.root_user:
        return None
    where = "docker run --user 1000:1000" if environment.container.shut_in else "an ordinary user"
    return note(
        "root_user",
        "nsabench runs as root, and so does every kernels file that it loads.",
        f"Use {f'`{where}`' if environment.container.shut_in else where}; nothing here needs root.",
    )


def low_disk(free_bytes: int | None) -> Problem | None:
    """`free_bytes` where the results go; None when unknown."""
    if free_bytes is None or free_bytes >= _LITTLE_DISK_BYTES:
        return None
    make = error if free_bytes < _LEAST_DISK_BYTES else warning
    return make(
        "low_disk",
        f"Only {free_bytes / (1 << 20):.0f} MiB of disk are free where the results go.",
        "Free some, or choose another place with `--out`.",
    )


def unwritable(writable: bool) -> Problem | None:
    if writable:
        return None
    return error(
        "unwritable",
        "The folder for the results cannot be written to.",
        "Choose another with `--out`, or mount one that this user owns (`docker run -v`).",
    )


CHECKS = (low_memory, few_cpus, busy_host, no_sandbox, powersave, on_battery, wsl, root_user)
