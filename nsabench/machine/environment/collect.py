"""Collects the environment. A missing part is recorded as absent and raises nothing."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from nsabench.machine.environment.container import read_container
from nsabench.machine.environment.gpu import read_driver, read_gpus
from nsabench.machine.environment.host import read_host
from nsabench.machine.environment.model import NO_WORKER, Environment
from nsabench.machine.environment.provenance import read_run
from nsabench.machine.environment.software import read_software
from nsabench.model.description import Described, DescribedDevice, DescribedSoftware
from nsabench.model.plan import Plan

# Numbers cannot be explained or compared without these.
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
        absent["gpus"] = "it is not known which device is measured on"
    return Environment(
        collected=datetime.now(UTC).replace(microsecond=0),
        complete=absent.keys().isdisjoint(needed),
        gpus=gpus,
        driver=driver,
        host=read_host(absent),
        software=read_software(described.software),
        container=read_container(variables, absent),
        sandbox=described.sandbox,
        run=read_run(plan, variables, absent),
        absent=dict(sorted(absent.items())),
    )
