"""A healthy machine with an H200, and ways to make it ill."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from nsabench.machine.environment.model import (
    Container,
    Driver,
    Environment,
    Gpu,
    Host,
    Software,
)

GIB = 1 << 30


def set_free_disk(monkeypatch, free):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free))


@pytest.fixture(autouse=True)
def enough_disk(monkeypatch):
    set_free_disk(monkeypatch, 100 * GIB)


@pytest.fixture
def healthy():
    return Environment(
        collected=datetime(2026, 1, 1, tzinfo=UTC),
        complete=True,
        gpus=[
            Gpu(
                index=0,
                used=True,
                name="NVIDIA H200",
                compute_capability="9.0",
                memory_bytes=140 * GIB,
                memory_used_bytes=GIB // 2,
                multiprocessors=132,
                power_limit_w=700,
                power_default_w=700,
                sm_clock_mhz=345,
                sm_clock_max_mhz=1980,
                clock_event_reasons=["gpu_idle"],
                temperature_c=28,
                competing_processes=0,
                persistence=True,
                mig=False,
            )
        ],
        driver=Driver(version="580.159.03", cuda="13.0", kernel_module="580.159.03", pci_devices=1),
        host=Host(
            cpu="AMD EPYC",
            threads=32,
            governor="performance",
            ram_available_bytes=120 * GIB,
        ),
        software=Software(
            nsabench="0.1.0",
            python="3.11.9",
            torch="2.11.0+cu130",
            torch_cuda="13.0",
            torch_architectures=["sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"],
            cuda_usable=True,
            pinned_triton="3.6.0",
            triton="3.6.0",
            numpy="2.3.5",
            cudnn="9.13.0",
            ptxas="12.8.93",
            distributions={
                "numpy": "2.3.5",
                "torch": "2.11.0+cu130",
                "triton": "3.6.0",
            },
        ),
        container=Container(runtime="docker", combo="torch-2.11"),
    )


@pytest.fixture
def but(healthy):
    """Return a function that changes fields of parts of the healthy machine: `but(host={…})`."""

    def change(base=healthy, **parts):
        changed = {}
        for part, fields in parts.items():
            if part == "gpu":
                changed["gpus"] = [base.gpus[0].model_copy(update=fields)]
            elif isinstance(fields, dict) and part != "absent":
                changed[part] = getattr(base, part).model_copy(update=fields)
            else:
                changed[part] = fields
        return base.model_copy(update=changed)

    return change


@pytest.fixture
def cpu_only(but):
    """Return a healthy machine without a GPU, with a torch for the CPU."""
    distributions = {
        "numpy": "2.3.5",
        "torch": "2.13.0+cpu",
        "triton": "3.7.1",
    }
    return but(
        gpus=[],
        driver=Driver(nvml_failure="NVML Shared Library Not Found"),
        software={
            "torch": "2.13.0+cpu",
            "torch_cuda": None,
            "torch_architectures": [],
            "cuda_usable": None,
            "pinned_triton": None,
            "triton": "3.7.1",
            "distributions": distributions,
        },
    )
