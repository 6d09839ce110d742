"""The content of `environment.json`: facts about the machine that can affect a result.

A field that could not be read is None, and `Environment.absent` says why. Nothing here identifies
the machine or its user.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from nsabench import limits, reading
from nsabench.model.description import DescribedSoftware
from nsabench.model.plan import Moment

SCHEMA_VERSION = 1
# Why facts that only torch knows are absent, if no worker was started.
NO_WORKER = "no worker was asked"


class EnvironmentPart(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Gpu(EnvironmentPart):
    """An NVIDIA device as NVML sees it before the first case. used: whether the run uses it."""

    index: int
    used: bool = False
    name: str | None = None
    compute_capability: str | None = None  # "9.0"
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    # The worker describes the next two, of the device or MIG slice in use.
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    clock_event_reasons: list[str] = []
    temperature_c: int | None = None
    utilisation_percent: int | None = None
    competing_processes: int | None = None
    competing_memory_bytes: int | None = None
    ecc: bool | None = None
    ecc_uncorrected: int | None = None  # since the driver was loaded
    remap_pending: bool | None = None  # a failing memory row will be remapped at the next reset
    remap_failed: bool | None = None
    persistence: bool | None = None
    mig: bool | None = None
    compute_mode: str | None = None

    @property
    def sm(self) -> str | None:
        return self.compute_capability and f"sm_{self.compute_capability.replace('.', '')}"


class Driver(EnvironmentPart):
    version: str | None = None  # "580.159.03"
    cuda: str | None = None  # the newest CUDA that it supports, "13.0"
    kernel_module: str | None = None  # its version, known even if NVML cannot be used
    nvml_failure: str | None = None
    pci_devices: int = 0  # NVIDIA display or compute devices on the PCI bus
    lost_gpus: int = 0  # devices that fell off the bus


class Cgroup(EnvironmentPart):
    """Limits of this process; None: no limit."""

    cpus: float | None = None
    memory_bytes: int | None = None


class Host(EnvironmentPart):
    cpu: str | None = None
    architecture: str | None = None
    threads: int | None = None
    affinity_threads: int | None = None
    governor: str | None = None
    frequency_driver: str | None = None
    energy_preference: str | None = None
    load_1m: float | None = None
    ram_bytes: int | None = None
    ram_available_bytes: int | None = None
    os: str | None = None
    kernel: str | None = None
    # The next three: whether Triton has what it needs to build and load launchers.
    compiler: bool | None = None
    python_headers: bool | None = None
    loads_temporary: bool | None = None  # whether code in the temporary folder can be loaded
    cgroup: Cgroup = Cgroup()


class Software(DescribedSoftware):
    model_config = ConfigDict(extra="ignore")

    nsabench: str
    python: str
    pinned_triton: str | None = None  # the version that the installed torch pins, "3.6.0"
    distributions: dict[str, str] = Field(default_factory=dict)

    @property
    def known_torch(self) -> str | None:
        return self.torch or self.distributions.get("torch")

    @property
    def known_triton(self) -> str | None:
        installed = self.distributions
        return self.triton or installed.get("triton") or installed.get("pytorch-triton")


class Container(EnvironmentPart):
    # "docker", "podman", "apptainer", "kubernetes", or None: unknown.
    runtime: str | None = None
    image_digest: str | None = None
    combo: str | None = None

    @property
    def shut_in(self) -> bool:
        return self.runtime is not None


class Run(EnvironmentPart):
    """Facts about a run that its plan does not contain."""

    device: str | None = None
    command: list[str] = []
    commits: dict[str, str] = {}  # of nsabench and the kernels, "-dirty" if files have changed
    variables: dict[str, str] = {}  # from an allow-list


class Environment(EnvironmentPart):
    """This machine. complete: whether all facts that comparisons need could be read."""

    schema_version: int = SCHEMA_VERSION
    collected: Moment
    complete: bool
    gpus: list[Gpu] = []
    driver: Driver = Driver()
    host: Host = Host()
    software: Software
    container: Container = Container()
    sandbox: str | None = None  # what workers cannot access; None: no worker was asked
    run: Run = Run()
    absent: dict[str, str] = {}  # a field, such as "software.torch" -> why it could not be read

    @classmethod
    def read(cls, path: Path) -> Environment:
        """Read the file. Raises `OSError`, or `OutOfBounds` if it holds no environment."""
        return reading.parse_json(reading.read(path, limits.ENVIRONMENT), limits.ENVIRONMENT, cls)

    @property
    def gpu(self) -> Gpu | None:
        """The device in use, or the only device."""
        used = [gpu for gpu in self.gpus if gpu.used]
        if used:
            return used[0]
        return self.gpus[0] if len(self.gpus) == 1 else None
