"""Collects the environment. It never fails: missing parts are recorded as absent."""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from importlib import metadata

from nsabench.machine.environment.container import read_container
from nsabench.machine.environment.gpu import read_driver, read_gpus
from nsabench.machine.environment.host import read_host
from nsabench.machine.environment.model import NO_WORKER, Environment, Software
from nsabench.machine.environment.provenance import read_run
from nsabench.model.description import Described, DescribedDevice, DescribedSoftware
from nsabench.model.plan import Plan
from nsabench.model.version import __version__

# Results cannot be compared without these.
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
        software=Software(
            **described.software.model_dump(),
            nsabench=__version__,
            python=platform.python_version(),
            pinned_triton=triton_pinned_by_torch(),
            distributions=list_distributions(),
        ),
        container=read_container(variables, absent),
        sandbox=described.sandbox,
        run=read_run(plan, variables, absent),
        absent=dict(sorted(absent.items())),
    )


def list_distributions() -> dict[str, str]:
    """Return the version of each distribution; if there are two, of the one that is imported."""
    versions: dict[str, str] = {}
    for installed in metadata.distributions():
        fields = installed.metadata  # each access reads the whole file
        # A broken uninstall leaves distributions without a name.
        name = fields["Name"] if fields is not None else None
        if name:
            versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), fields["Version"] or "")
    return dict(sorted(versions.items()))


def triton_pinned_by_torch() -> str | None:
    try:
        requirements = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        return None
    matches = (re.match(r"(?:pytorch-)?triton\s*\(?==\s*([\w.+]+)", text) for text in requirements)
    return next((match[1] for match in matches if match), None)
