"""The host is read from trees of files that look like /proc and /sys."""

import os
from types import SimpleNamespace

import pytest

from nsabench.machine.environment.collect import read_cgroup, read_host
from nsabench.machine.environment.model import Cgroup


def tree(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, Cgroup()),
        # a container with a namespace of its own
        (
            {
                "proc/self/cgroup": "0::/",
                "sys/fs/cgroup/cpu.max": "150000 100000",
                "sys/fs/cgroup/memory.max": "1073741824",
            },
            Cgroup(cpus=1.5, memory_bytes=1 << 30),
        ),
        # the tightest limit of all levels holds
        (
            {
                "proc/self/cgroup": "0::/a.slice/b.scope",
                "sys/fs/cgroup/a.slice/cpu.max": "200000 100000",
                "sys/fs/cgroup/a.slice/b.scope/cpu.max": "max 100000",
                "sys/fs/cgroup/a.slice/b.scope/memory.max": "max",
            },
            Cgroup(cpus=2.0),
        ),
    ],
)
def test_cgroup(tmp_path, files, expected):
    assert read_cgroup(tree(tmp_path, files)) == expected


def test_a_path_that_leads_out_of_the_cgroup_mount_ends_at_the_mount(tmp_path):
    files = {"proc/self/cgroup": "0::/../../elsewhere", "sys/fs/cgroup/memory.max": "4096"}
    assert read_cgroup(tree(tmp_path, files)).memory_bytes == 4096


def test_frequency_scaling_and_processor(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 3})
    cpu = "sys/devices/system/cpu"
    files = {
        "proc/cpuinfo": "model name\t: A processor\n\nmodel name\t: another",
        f"{cpu}/cpu2/cpufreq/scaling_governor": "powersave",
        f"{cpu}/cpu2/cpufreq/scaling_driver": "intel_pstate",
        f"{cpu}/cpu2/cpufreq/energy_performance_preference": "balance_performance",
    }
    host = read_host({}, tree(tmp_path, files))
    assert host.cpu == "A processor"
    assert (host.governor, host.frequency_driver) == ("powersave", "intel_pstate")
    assert host.affinity_threads == 2


def test_a_processor_without_a_name_is_asked_of_py_cpuinfo(tmp_path, monkeypatch):
    files = {"proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd sve"}
    monkeypatch.setattr("cpuinfo.get_cpu_info", lambda: {"brand_raw": "Neoverse-V2"})
    assert read_host({}, tree(tmp_path, files)).cpu == "Neoverse-V2"


def test_this_machine():
    absent = {}
    host = read_host(absent)
    assert host.cpu and host.kernel and host.ram_bytes and host.affinity_threads
    assert host.governor or "host.governor" in absent


def test_what_triton_builds_launchers_with(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC | os.ST_NOSUID))
    host = read_host({})
    assert (host.compiler, host.python_headers, host.loads_temporary) == (False, False, False)
    compiler = tmp_path / "clang"
    compiler.write_text("")
    compiler.chmod(0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOSUID))
    host = read_host({})
    assert (host.compiler, host.python_headers, host.loads_temporary) == (True, True, True)
