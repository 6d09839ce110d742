"""Reads the machine around the device: processor, memory, kernel, power."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

import psutil

from nsabench.machine.environment.cgroup import read_cgroup
from nsabench.machine.environment.identifiers import Redactor
from nsabench.machine.environment.model import Host

# Those that decide how fast a CPU baseline can be.
_INSTRUCTION_SETS = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_bf16", "neon", "asimd", "asimdhp", "bf16", "sve", "sve2",
)  # fmt: skip


def read_host(redactor: Redactor, absent: dict[str, str], root: Path = Path("/")) -> Host:
    """root: the folder of /proc and /sys."""
    processor = _processor(root, absent)
    flags = set(processor.get("flags", processor.get("Features", "")).split())
    affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    frequency = _frequency()
    memory = psutil.virtual_memory()
    # Where this process runs; on hybrid processors other cores may differ.
    scaling = root / f"sys/devices/system/cpu/cpu{affinity[0] if affinity else 0}/cpufreq"
    governor = _read(scaling / "scaling_governor")
    if governor is None:
        absent["host.governor"] = "the kernel offers no frequency scaling here"
    release = platform.uname().release
    return Host(
        hostname=redactor.identifier("hostname", socket.gethostname()),
        cpu=processor.get("model name"),
        cpu_vendor=processor.get("vendor_id"),
        architecture=platform.machine() or None,
        instruction_sets=[name for name in _INSTRUCTION_SETS if name in flags],
        cores=psutil.cpu_count(logical=False),
        threads=psutil.cpu_count(logical=True),
        affinity=ranges(affinity) if affinity else None,
        affinity_threads=len(affinity) or None,
        frequency_mhz=frequency[0],
        frequency_max_mhz=frequency[1],
        governor=governor,
        frequency_driver=_read(scaling / "scaling_driver"),
        energy_preference=_read(scaling / "energy_performance_preference"),
        turbo=_turbo(root),
        numa_nodes=len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
        hypervisor="hypervisor" in flags if flags else None,
        load_1m=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        ram_bytes=memory.total,
        ram_available_bytes=memory.available,
        on_battery=_on_battery(root),
        os=_os_name(),
        kernel=f"{platform.uname().system} {release}",
        libc=" ".join(platform.libc_ver()).strip() or None,
        wsl="microsoft" in release.lower(),
        root_user=hasattr(os, "geteuid") and os.geteuid() == 0,
        cgroup=read_cgroup(root),
    )


def ranges(numbers: list[int]) -> str:
    """Return ascending numbers in the kernel's notation: [0, 1, 2, 5] -> "0-2,5"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in spans)


def _processor(root: Path, absent: dict[str, str]) -> dict[str, str]:
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
        fields.setdefault("vendor_id", info.get("vendor_id_raw", ""))
        fields.setdefault("flags", " ".join(info.get("flags", [])))
    if not fields["model name"]:
        absent["host.cpu"] = "neither the kernel nor py-cpuinfo names the processor"
    return {key: value for key, value in fields.items() if value}


def _frequency() -> tuple[float | None, float | None]:
    """Return the current and the highest MHz. Kernels write 0 if they do not know."""
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, RuntimeError):
        return None, None
    return (frequency.current or None, frequency.max or None) if frequency else (None, None)


def _turbo(root: Path) -> bool | None:
    off = _read(root / "sys/devices/system/cpu/intel_pstate/no_turbo")
    if off is not None:
        return off == "0"
    on = _read(root / "sys/devices/system/cpu/cpufreq/boost")
    return on == "1" if on is not None else None


def _on_battery(root: Path) -> bool | None:
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
