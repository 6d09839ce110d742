"""Reads the machine around the device: processor, memory, kernel, power."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

from nsabench.machine.environment.cgroup import read_cgroup
from nsabench.machine.environment.model import Host

# Those that decide how fast a CPU baseline can be.
_INSTRUCTION_SETS = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_bf16", "neon", "asimd", "asimdhp", "bf16", "sve", "sve2",
)  # fmt: skip


def read_host(absent: dict[str, str], root: Path = Path("/")) -> Host:
    """root: the folder of /proc and /sys."""
    processor = _read_processor(root, absent)
    flags = set(processor.get("flags", processor.get("Features", "")).split())
    affinity = os.sched_getaffinity(0)
    memory = psutil.virtual_memory()
    # Where this process runs; on hybrid processors other cores may differ.
    scaling = root / f"sys/devices/system/cpu/cpu{min(affinity)}/cpufreq"
    governor = _read(scaling / "scaling_governor")
    if governor is None:
        absent["host.governor"] = "the kernel offers no frequency scaling here"
    release = platform.uname().release
    return Host(
        cpu=processor.get("model name"),
        architecture=platform.machine() or None,
        instruction_sets=[name for name in _INSTRUCTION_SETS if name in flags],
        cores=psutil.cpu_count(logical=False),
        threads=psutil.cpu_count(logical=True),
        affinity_threads=len(affinity),
        governor=governor,
        frequency_driver=_read(scaling / "scaling_driver"),
        energy_preference=_read(scaling / "energy_performance_preference"),
        turbo=_read_turbo(root),
        hypervisor="hypervisor" in flags if flags else None,
        load_1m=os.getloadavg()[0],
        ram_bytes=memory.total,
        ram_available_bytes=memory.available,
        on_battery=_is_on_battery(root),
        os=_os_name(),
        kernel=f"{platform.uname().system} {release}",
        libc=" ".join(platform.libc_ver()).strip() or None,
        wsl="microsoft" in release.lower(),
        root_user=os.geteuid() == 0,
        cgroup=read_cgroup(root),
    )


def _read_processor(root: Path, absent: dict[str, str]) -> dict[str, str]:
    """Return the first processor of /proc/cpuinfo; without a name there, that of py-cpuinfo.

    py-cpuinfo takes a second and runs machine code of its own.
    """
    first = (_read(root / "proc/cpuinfo") or "").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    if not fields.get("model name"):
        import cpuinfo

        info = cpuinfo.get_cpu_info()
        fields["model name"] = info.get("brand_raw", "")
        fields.setdefault("flags", " ".join(info.get("flags", [])))
    if not fields["model name"]:
        absent["host.cpu"] = "neither the kernel nor py-cpuinfo names the processor"
    return {key: value for key, value in fields.items() if value}


def _read_turbo(root: Path) -> bool | None:
    off = _read(root / "sys/devices/system/cpu/intel_pstate/no_turbo")
    if off is not None:
        return off == "0"
    on = _read(root / "sys/devices/system/cpu/cpufreq/boost")
    return on == "1" if on is not None else None


def _is_on_battery(root: Path) -> bool | None:
    """Return None if no battery powers the machine; a mouse may have one."""
    batteries = [
        supply
        for supply in (root / "sys/class/power_supply").glob("*")
        if _read(supply / "type") == "Battery" and _read(supply / "scope") != "Device"
    ]
    if not batteries:
        return None
    return any(_read(battery / "status") == "Discharging" for battery in batteries)


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
