"""Reads the limits of control groups, version 1 or 2, for this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nsabench.machine.environment.model import Cgroup

# Version 1 writes "no limit" as a number near 2**63, rounded down to a page.
_NO_MEMORY_LIMIT = 1 << 60


def read_cgroup(root: Path = Path("/")) -> Cgroup:
    """Return the lowest limits from this process's group up to the root of the hierarchy."""
    paths = _paths(root / "proc/self/cgroup")
    mount = root / "sys/fs/cgroup"
    if (mount / "cgroup.controllers").exists():
        groups = list(_upwards(mount, paths.get("", "/")))
        quota = _smallest(_cpus_v2(group / "cpu.max") for group in groups)
        memory = _smallest(_number(group / "memory.max") for group in groups)
        return Cgroup(version=2, cpus=quota, memory_bytes=int(memory) if memory else None)
    if "cpu" not in paths and "memory" not in paths:
        return Cgroup()
    cpu = _upwards(_first(mount / "cpu", mount / "cpu,cpuacct"), paths.get("cpu", "/"))
    quota = _smallest(_cpus_v1(group) for group in cpu)
    groups = list(_upwards(mount / "memory", paths.get("memory", "/")))
    memory = _smallest(_number(group / "memory.limit_in_bytes") for group in groups)
    limited = memory is not None and memory < _NO_MEMORY_LIMIT
    return Cgroup(version=1, cpus=quota, memory_bytes=int(memory) if memory and limited else None)


def _paths(file: Path) -> dict[str, str]:
    """Return the path of the group by controller; "" is the hierarchy of version 2."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    limits = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        limits.update(dict.fromkeys(controllers.split(","), path))
    return limits


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield the group and its parents. In a container the path may be the host's."""
    group = mount / path.strip("/")
    while group != mount and mount in group.parents:
        yield group
        group = group.parent
    yield mount


def _cpus_v2(file: Path) -> float | None:
    try:
        quota, period = file.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _cpus_v1(group: Path) -> float | None:
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _number(file: Path) -> float | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max"
        return None


def _first(*folders: Path) -> Path:
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def _smallest(values: Iterator[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)
