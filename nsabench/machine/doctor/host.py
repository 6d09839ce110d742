"""Problems of the machine around the device: memory, CPUs, power, and the folder for results."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nsabench.machine.doctor.problem import Problem, error, note, warning
from nsabench.machine.environment.model import Environment

_GIB = 1 << 30
_LEAST_MEMORY_BYTES = 2 * _GIB
_LITTLE_DISK_BYTES = 2 * _GIB
_LEAST_DISK_BYTES = _GIB // 4
_FEWEST_CPUS = 2.0
# Under the governor "powersave", these drivers follow the demand unless told to save energy.
_SELF_SCALING = frozenset({"intel_pstate", "amd-pstate-epp"})


def examine(environment: Environment) -> Iterator[Problem]:
    yield from _resources(environment)
    yield from _power(environment)
    yield from _user(environment)


def _resources(environment: Environment) -> Iterator[Problem]:
    host = environment.host
    memory = [b for b in (host.ram_available_bytes, host.cgroup.memory_bytes) if b is not None]
    if memory and min(memory) < _LEAST_MEMORY_BYTES:
        yield warning(
            "low_memory",
            f"Only {min(memory) / _GIB:.1f} GiB of memory are to be had: the kernel may kill "
            "workers.",
            f"Free some, or raise the container's limit to {_LEAST_MEMORY_BYTES // _GIB} GiB or "
            "more.",
        )
    cpus = [n for n in (host.affinity_threads, host.cgroup.cpus) if n is not None]
    if cpus and min(cpus) < _FEWEST_CPUS:
        yield warning(
            "few_cpus",
            f"This process may use {min(cpus):g} CPU: the worker has to share it, and launches are "
            "delayed.",
            "Give it two or more (`docker run --cpus`, `taskset`, the job's request).",
        )
    load, threads = host.load_1m, host.threads
    if load is not None and threads is not None and load > threads:
        yield warning(
            "busy_host",
            f"The host is busy: load {load:.1f} on {threads} threads; launches and CPU times "
            "suffer.",
            "Wait until other work is done.",
        )
    held = environment.sandbox
    if held is not None and not held.startswith("files"):
        yield warning(
            "no_sandbox",
            f"Kernels are not kept from this user's files, runs and keys: {held}.",
            "Measure kernels of people you trust, or on Linux 5.13 or newer with Landlock among "
            "the modules of /sys/kernel/security/lsm.",
        )


def _power(environment: Environment) -> Iterator[Problem]:
    host = environment.host
    follows_demand = host.frequency_driver in _SELF_SCALING and host.energy_preference not in (
        "power",
        "balance_power",
    )
    if host.governor == "powersave" and not follows_demand:
        make = note if environment.gpus else warning
        yield make(
            "cpu_powersave",
            "The CPU governor is `powersave`: CPU times are not those of the full clock.",
            "Run `cpupower frequency-set -g performance` as root.",
        )


def _user(environment: Environment) -> Iterator[Problem]:
    if environment.host.wsl:
        yield note(
            "wsl",
            "This is WSL: the GPU is shared with the Windows desktop, and clock events are not "
            "told.",
            "Measure under Linux itself for numbers to be published.",
        )
    if environment.host.root_user:
        in_container = environment.container.shut_in
        other = "`docker run --user 1000:1000`" if in_container else "an ordinary user"
        yield note(
            "root_user",
            "nsabench runs as root, and so does every kernels file that it loads.",
            f"Use {other}; nothing here needs root.",
        )


def examine_folder(results: Path) -> Iterator[Problem]:
    """results: it may not exist yet; then the nearest folder above it counts."""
    results = results.absolute()
    existing = next((f for f in (results, *results.parents) if f.is_dir()), Path(results.anchor))
    with suppress(OSError):
        free_bytes = shutil.disk_usage(existing).free
        if free_bytes < _LITTLE_DISK_BYTES:
            make = error if free_bytes < _LEAST_DISK_BYTES else warning
            yield make(
                "low_disk",
                f"Only {free_bytes / (1 << 20):.0f} MiB of disk are free where the results go.",
                "Free some, or choose another place with `--out`.",
            )
    if not os.access(existing, os.W_OK | os.X_OK):
        yield error(
            "unwritable",
            "The folder for the results cannot be written to.",
            "Choose another with `--out`, or mount one that this user owns (`docker run -v`).",
        )
