"""Reads the limits of control groups, version 1 or 2, for this process."""

from __future__ import annotations

from pathlib import Path

from nsabench.machine.environment.model import Cgroup

# Version 1 writes "no limit" as a number near 2**63, rounded down to a page.
_NO_MEMORY_LIMIT = 1 << 60


def read_cgroup(root: Path = Path("/")) -> Cgroup:
    """Return the lowest limits from this process's group up to the root of the hierarchy."""
    paths = {}
    for line in _read_words(root / "proc/self/cgroup", "\n"):
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    mount = root / "sys/fs/cgroup"
    if (mount / "cgroup.controllers").exists():
        for_cpus = for_memory = _list_groups(mount, paths.get("", "/"))
    else:
        for_cpus = _list_groups(mount / "cpu", paths.get("cpu", "/"))
        for_memory = _list_groups(mount / "memory", paths.get("memory", "/"))
    cpus = [limit for group in for_cpus if (limit := _read_cpus(group)) is not None]
    memory = [limit for group in for_memory if (limit := _read_memory(group)) is not None]
    return Cgroup(cpus=min(cpus, default=None), memory_bytes=min(memory, default=None))


def _list_groups(mount: Path, path: str) -> list[Path]:
    """Return the group and its parents. In a container the path may be the host's."""
    group = mount / path.strip("/")
    return [mount, *(g for g in (group, *group.parents) if mount in g.parents)]


def _read_cpus(group: Path) -> float | None:
    words = _read_words(group / "cpu.max")
    words = words or _read_words(group / "cpu.cfs_quota_us") + _read_words(
        group / "cpu.cfs_period_us"
    )
    limited = len(words) == 2 and words[0] not in ("max", "-1")
    return int(words[0]) / int(words[1]) if limited else None


def _read_memory(group: Path) -> int | None:
    words = _read_words(group / "memory.max") or _read_words(group / "memory.limit_in_bytes")
    limit = int(words[0]) if words and words[0] != "max" else _NO_MEMORY_LIMIT
    return limit if limit < _NO_MEMORY_LIMIT else None


def _read_words(file: Path, separator: str | None = None) -> list[str]:
    try:
        return file.read_text().strip().split(separator)
    except OSError:
        return []
