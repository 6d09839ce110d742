"""Reads the machine around the device: processor, memory, kernel, power."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sysconfig
import tempfile
from pathlib import Path

import psutil

from nsabench.machine.environment.model import Cgroup, Host

_COMPILERS = ("gcc", "clang", "cc")  # those that Triton looks for


def read_host(absent: dict[str, str], root: Path = Path("/")) -> Host:
    affinity = os.sched_getaffinity(0)
    memory = psutil.virtual_memory()
    # On hybrid processors cores differ, so read a core of this process.
    scaling = root / f"sys/devices/system/cpu/cpu{min(affinity)}/cpufreq"
    governor = _read(scaling / "scaling_governor")
    if governor is None:
        absent["host.governor"] = "the kernel offers no frequency scaling here"
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
    # In a container the path may be the host's.
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
        absent["host.cpu"] = "neither the kernel nor py-cpuinfo names the processor"
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
