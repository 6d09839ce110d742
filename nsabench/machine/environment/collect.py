"""Collects the environment. A missing part is recorded as absent and raises nothing."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from nsabench.machine.environment.container import read_container
from nsabench.machine.environment.gpu import read_driver, read_gpus
from nsabench.machine.environment.host import read_host
from nsabench.machine.environment.model import Environment
from nsabench.machine.environment.provenance import read_run
from nsabench.machine.environment.software import read_software
from nsabench.model.description import Described
from nsabench.model.plan import Plan

# Numbers cannot be explained or compared without these.
_NEEDED = ("host.cpu", "software.torch")
_NEEDED_ON_CUDA = (
    "driver",
    "gpus",
    "gpus.nvml",
    "software.triton",
    "software.libraries.cublas",
    "software.libraries.cuda_driver",
    "software.libraries.ptxas",
)


def collect(described: Described | None, plan: Plan | None) -> Environment:
    """Describe this machine. described: what the worker says about torch and the device."""
    variables = dict(os.environ)
    absent: dict[str, str] = {}
    driver = read_driver()
    if driver.nvml_failure is not None:
        absent["driver"] = driver.nvml_failure
    gpus = read_gpus(described, absent)
    if not gpus:
        absent["gpus"] = driver.nvml_failure or "NVML shows no device"
    software = read_software(described, variables, absent)
    on_cuda = _on_cuda(described, plan)
    if on_cuda and gpus and not any(gpu.used for gpu in gpus):
        absent["gpus"] = "it is not known which device is measured on"
    return Environment(
        collected=datetime.now(UTC).replace(microsecond=0),
        complete=absent.keys().isdisjoint([*_NEEDED, *(_NEEDED_ON_CUDA if on_cuda else ())]),
        gpus=gpus,
        driver=driver,
        host=read_host(absent),
        software=software,
        container=read_container(variables, absent),
        sandbox=described.sandbox if described is not None else None,
        run=read_run(plan, variables, absent),
        absent=dict(sorted(absent.items())),
    )


def _on_cuda(described: Described | None, plan: Plan | None) -> bool:
    if plan is not None:
        return plan.device == "cuda"
    return described is not None and described.device.type == "cuda"
