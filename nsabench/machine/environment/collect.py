"""Collect the environment. This never fails: missing parts are recorded as absent."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

import psutil
import pynvml

from nsabench.machine.environment.gpu import read_driver, read_gpus
from nsabench.machine.environment.model import NO_WORKER, Cgroup, Environment, Host, Software
from nsabench.machine.environment.nvml import Device, attempt
from nsabench.machine.environment.provenance import read_container, read_run
from nsabench.model.description import Described, DescribedDevice, DescribedSoftware
from nsabench.model.plan import Plan
from nsabench.model.version import __version__

# Results cannot be compared without these.
_NEEDED = ("host.cpu", "software.torch")
_NEEDED_ON_CUDA = (
    *("driver", "gpus", "gpus.nvml", "software.triton"),
    *("software.cuda_driver", "software.ptxas"),
)


def collect(described: Described | None, plan: Plan | None) -> Environment:
    """Describe this machine. described: what the worker says about torch and the device."""
    variables = dict(os.environ)
    device = plan.device if plan is not None else described.device.type if described else ""
    needed = [*_NEEDED, *(_NEEDED_ON_CUDA if device == "cuda" else ())]
    silent = NO_WORKER if described is None else "the worker did not say"
    described = described or Described(software=DescribedSoftware(), device=DescribedDevice())
    absent = dict(described.absent)
    for name, value in described.software:
        if value is None and f"software.{name}" in {*needed, "software.triton"}:
            absent.setdefault(f"software.{name}", silent)
    driver = read_driver()
    if driver.nvml_failure is not None:
        absent["driver"] = driver.nvml_failure
    gpus = read_gpus(described.device, absent)
    if not gpus:
        absent["gpus"] = driver.nvml_failure or "NVML shows no device"
    elif device == "cuda" and not any(gpu.used for gpu in gpus):
        absent["gpus"] = "it is not known which device the run uses"
    return Environment(
        collected=datetime.now(UTC).replace(microsecond=0),
        complete=absent.keys().isdisjoint(needed),
        gpus=gpus,
        driver=driver,
        host=read_host(absent),
        software=Software(
            **described.software.model_dump(),
            nsabench=__version__,
            python=platform.python_version(),
            pinned_triton=triton_pinned_by_torch(),
            distributions=list_distributions(tuple(sys.path)),
        ),
        container=read_container(variables, absent),
        sandbox=described.sandbox,
        run=read_run(plan, variables, absent),
        absent=dict(sorted(absent.items())),
    )


@cache
def list_distributions(path: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of distributions in the folders `path`. The first of a name counts."""
    versions: dict[str, str] = {}
    for installed in metadata.distributions(path=[*path]):
        fields = installed.metadata  # each access reads the whole file
        # A broken uninstall leaves distributions without a name.
        name = fields["Name"] if fields is not None else None
        if name:
            versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), fields["Version"] or "")
    return dict(sorted(versions.items()))


def triton_pinned_by_torch() -> str | None:
    try:
        requirements = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        return None
    matches = (re.match(r"(?:pytorch-)?triton\s*\(?==\s*([\w.+]+)", text) for text in requirements)
    return next((match[1] for match in matches if match), None)


_COMPILERS = ("gcc", "clang", "cc")  # those that Triton looks for


def read_host(absent: dict[str, str], root: Path = Path("/")) -> Host:
    affinity = os.sched_getaffinity(0)
    memory = psutil.virtual_memory()
    # Cores of a hybrid processor differ, so read a core that this process may use.
    scaling = root / f"sys/devices/system/cpu/cpu{min(affinity)}/cpufreq"
    governor = _read(scaling / "scaling_governor")
    if governor is None:
        absent["host.governor"] = "Linux offers no frequency scaling here"
    return Host(
        cpu=_read_processor(root, absent),
        architecture=platform.machine() or None,
        threads=psutil.cpu_count(logical=True),
        affinity_threads=len(affinity),
        governor=governor,
        frequency_driver=_read(scaling / "scaling_driver"),
        energy_preference=_read(scaling / "energy_performance_preference"),
        load_1m=os.getloadavg()[0],
        ram_bytes=memory.total,
        ram_available_bytes=memory.available,
        os=_os_name(),
        kernel=f"{platform.uname().system} {platform.uname().release}",
        compiler=any(map(shutil.which, filter(None, (os.environ.get("CC"), *_COMPILERS)))),
        python_headers=Path(sysconfig.get_path("include"), "Python.h").is_file(),
        loads_temporary=not os.statvfs(tempfile.gettempdir()).f_flag & os.ST_NOEXEC,
        cgroup=read_cgroup(root),
    )


def read_cgroup(root: Path = Path("/")) -> Cgroup:
    """Return the lowest limits of this process's control group and its parents (version 2)."""
    mount = root / "sys/fs/cgroup"
    # In a container this may be a path of the host, which does not exist here and sets no limit.
    group = mount / (_read(root / "proc/self/cgroup") or "").removeprefix("0::").strip("/")
    groups = [mount, *(g for g in (group, *group.parents) if mount in g.parents)]
    quotas = [(_read(g / "cpu.max") or "max").split() for g in groups]
    limits = [_read(g / "memory.max") or "max" for g in groups]
    return Cgroup(
        cpus=min((int(q[0]) / int(q[1]) for q in quotas if q[0] != "max"), default=None),
        memory_bytes=min((int(limit) for limit in limits if limit != "max"), default=None),
    )


def _read_processor(root: Path, absent: dict[str, str]) -> str | None:
    """Return the processor's name from /proc/cpuinfo, or from py-cpuinfo, which takes a second."""
    named = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo") or "", re.MULTILINE)
    if named is not None:
        return named[1]
    import cpuinfo

    name: str | None = cpuinfo.get_cpu_info().get("brand_raw")
    if not name:
        absent["host.cpu"] = "neither Linux nor py-cpuinfo names the processor"
    return name or None


def _os_name() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _read(file: Path) -> str | None:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return None


def memory_of(device: str) -> int | None:
    """Return the bytes of the largest GPU's memory or, for "cpu", of the memory that is usable."""
    if device == "cpu":
        host = int(psutil.virtual_memory().total)
        allowed = read_cgroup().memory_bytes
        return min(host, allowed) if allowed else host
    memories = [attempt(pynvml.nvmlDeviceGetMemoryInfo, gpu.handle) for gpu in Device.list_all()]
    return max((memory.total for memory in memories if memory is not None), default=None)
