"""Reads the limits of control groups, version 1 or 2, for this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from nsabench.machine.environment.model import Cgroup

# Version 1 writes "no limit" as a number near 2**63, rounded down to a page.
_NO_MEMORY_LIMIT = 1 << 60


def read_cgroup(root: Path = Path("/")) -> Cgroup:
    """Return the lowest limits from this process's group up to the root of the hierarchy."""
    paths = _read_paths(root / "proc/self/cgroup")
    mount = root / "sys/fs/cgroup"
    if (mount / "cgroup.controllers").exists():
        groups = list(_ancestors(mount, paths.get("", "/")))
        cpus = [_read_cpus_v2(group / "cpu.max") for group in groups]
        limits = [_read_number(group / "memory.max") for group in groups]
    else:
        cpus = [_read_cpus_v1(group) for group in _ancestors(mount / "cpu", paths.get("cpu", "/"))]
        groups = list(_ancestors(mount / "memory", paths.get("memory", "/")))
        limits = [_read_number(group / "memory.limit_in_bytes") for group in groups]
    memory = _lowest(limit for limit in limits if limit is None or limit < _NO_MEMORY_LIMIT)
    return Cgroup(cpus=_lowest(cpus), memory_bytes=int(memory) if memory is not None else None)


def _read_paths(file: Path) -> dict[str, str]:
    """Return the path of the group by controller; "" is the hierarchy of version 2."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    paths = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _ancestors(mount: Path, path: str) -> Iterator[Path]:
    """Yield the group and its parents. In a container the path may be the host's."""
    group = mount / path.strip("/")
    while group != mount and mount in group.parents:
        yield group
        group = group.parent
    yield mount


def _read_cpus_v2(file: Path) -> float | None:
    try:
        quota, period = file.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _read_cpus_v1(group: Path) -> float | None:
    quota = _read_number(group / "cpu.cfs_quota_us")
    period = _read_number(group / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _read_number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max"
        return None


def _lowest(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)
