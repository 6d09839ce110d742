"""Problems of the host: memory, CPUs, environment variables, the folder for results."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nsabench.machine.doctor.problem import MachineProblem, Severity, error, note, warning
from nsabench.machine.environment.model import Environment

_GIB = 1 << 30
_LEAST_MEMORY_BYTES = 2 * _GIB
_LITTLE_DISK_BYTES = 2 * _GIB
_LEAST_DISK_BYTES = _GIB // 4
_FEWEST_CPUS = 2.0
# Even with the governor `powersave`, these drivers follow the load unless set to save energy.
_SELF_SCALING = frozenset({"intel_pstate", "amd-pstate-epp"})


def _is_on(value: str) -> bool:
    return value.strip().lower() not in ("", "0", "false", "off", "no")


def _hides_all(value: str) -> bool:
    return value.strip() in ("", "-1", "NoDevFiles")


@dataclass(frozen=True)
class Switch:
    """An environment variable, a test whether its value matters, and the effect of such a value."""

    name: str
    matters: Callable[[str], bool]
    severity: Severity
    consequence: str


SWITCHES = (
    Switch("CUDA_LAUNCH_BLOCKING", _is_on, Severity.ERROR, "every launch waits for the device"),
    Switch("CUDA_VISIBLE_DEVICES", _hides_all, Severity.ERROR, "every GPU is hidden"),
    Switch("CUDA_INJECTION64_PATH", bool, Severity.WARNING, "a profiler slows the device down"),
    Switch(
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        bool,
        Severity.WARNING,
        "only a part of the multiprocessors is used",
    ),
    Switch("PYTORCH_NO_CUDA_MEMORY_CACHING", _is_on, Severity.WARNING, "times include allocations"),
    Switch("NVIDIA_TF32_OVERRIDE", bool, Severity.WARNING, "it changes the precision of float32"),
)


def examine(environment: Environment) -> Iterator[MachineProblem]:
    yield from _examine_resources(environment)
    if environment.gpus:
        yield from _examine_build(environment)
    # Variables matter only with a GPU.
    values = environment.run.variables if environment.gpus else {}
    for switch in SWITCHES:
        if switch.name in values and switch.matters(values[switch.name]):
            yield MachineProblem(
                severity=switch.severity,
                code=f"variable_{switch.name.lower()}",
                what=f"{switch.name} is {values[switch.name]!r}: {switch.consequence}.",
                remedy=f"Run `unset {switch.name}`.",
            )


def _examine_resources(environment: Environment) -> Iterator[MachineProblem]:
    host = environment.host
    memory = [b for b in (host.ram_available_bytes, host.cgroup.memory_bytes) if b is not None]
    if memory and min(memory) < _LEAST_MEMORY_BYTES:
        yield warning(
            "low_memory",
            f"Only {min(memory) / _GIB:.1f} GiB of memory are free: Linux may kill workers.",
            f"Free memory, or raise the container's limit to {_LEAST_MEMORY_BYTES // _GIB} GiB.",
        )
    cpus = [n for n in (host.affinity_threads, host.cgroup.cpus) if n is not None]
    if cpus and min(cpus) < _FEWEST_CPUS:
        yield warning(
            "few_cpus",
            f"This process and its worker share {min(cpus):g} CPU: kernels are launched late.",
            "Give it two CPUs or more (`docker run --cpus`, `taskset`, the job's request).",
        )
    load, threads = host.load_1m, host.threads
    if load is not None and threads is not None and load > threads:
        yield warning(
            "busy_host",
            f"The load is {load:.1f} on {threads} threads: launches are late, CPU times too long.",
            "Wait until the other work is done.",
        )
    sandbox = environment.sandbox
    if sandbox is not None and not sandbox.startswith("files"):
        yield warning(
            "no_sandbox",
            f"Kernels can reach this user's files, runs and keys: {sandbox}.",
            "Measure only kernels that you trust, or use Linux 5.13 or newer with Landlock.",
        )
    saves_energy = host.energy_preference in ("power", "balance_power")
    follows_demand = host.frequency_driver in _SELF_SCALING and not saves_energy
    if host.governor == "powersave" and not follows_demand:
        make = note if environment.gpus else warning
        yield make(
            "cpu_powersave",
            "The CPU governor is `powersave`: CPU times are longer than at the full clock.",
            "Run `cpupower frequency-set -g performance` as root.",
        )


def _examine_build(environment: Environment) -> Iterator[MachineProblem]:
    host = environment.host
    if host.compiler is False:
        yield error(
            "no_compiler",
            "There is no C compiler, and Triton builds a launcher for each kernel.",
            "Install one (`apt install gcc`), or name it in CC.",
        )
    if host.python_headers is False:
        yield error(
            "no_python_headers",
            "Python.h is missing, and Triton builds its launchers with it.",
            "Install Python's headers (`apt install python3-dev`).",
        )
    if host.loads_temporary is False:
        yield error(
            "noexec_temporary_folder",
            "The temporary folder is mounted with `noexec`: Triton's launchers cannot be loaded.",
            "Set TMPDIR to another folder, or mount it with `exec` (`docker run --tmpfs "
            "/tmp:rw,exec`).",
        )


def examine_folder(results: Path) -> Iterator[MachineProblem]:
    """Yield problems of the folder `results`, or of its nearest existing parent."""
    results = results.absolute()
    existing = next((f for f in (results, *results.parents) if f.is_dir()), Path(results.anchor))
    with suppress(OSError):
        free_bytes = shutil.disk_usage(existing).free
        if free_bytes < _LITTLE_DISK_BYTES:
            make = error if free_bytes < _LEAST_DISK_BYTES else warning
            yield make(
                "low_disk",
                f"Only {free_bytes / (1 << 20):.0f} MiB of disk are free for the results. A run "
                f"needs {_LEAST_DISK_BYTES / (1 << 20):.0f} MiB or more.",
                "Free some space, or write a new run to another disk with `--out`.",
            )
    if not os.access(existing, os.W_OK | os.X_OK):
        yield error(
            "unwritable",
            "The folder for the results cannot be written to.",
            f"Give it to uid {os.getuid()} (`chown`), start a container as its owner (`docker run "
            "--user`), or choose another with `--out`.",
        )
