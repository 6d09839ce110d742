"""What `environment.json` says: everything about the machine that can decide a number.

Names end in their unit (`_bytes`, `_mhz`, `_w`, `_c`). A field that could not be read is None, and
`Environment.absent` says why. Fields are only ever added; readers ignore those they do not know.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from nsabench import limits, reading
from nsabench.model.moment import Moment

SCHEMA_VERSION = 1
# The reason for whatever only torch knows, when no process with torch was started to ask.
NO_WORKER = "no worker was asked"


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Gpu(Part):
    """One NVIDIA device as NVML sees it, before the first case; `used` is the one measured on."""

    index: int
    used: bool = False
    name: str | None = None
    compute_capability: str | None = None  # "9.0"
    vbios: str | None = None
    uuid: str | None = None  # this and the next two: see Environment.identifiers
    serial: str | None = None
    pci_bus_id: str | None = None

    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_bus_bits: int | None = None
    # From the worker, for the device in use. In a MIG slice they are those of the slice.
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    shared_memory_bytes: int | None = None  # the most one block may ask for

    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    power_min_w: float | None = None
    power_max_w: float | None = None

    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    sm_clock_application_mhz: int | None = None
    sm_clock_application_default_mhz: int | None = None
    mem_clock_mhz: int | None = None
    mem_clock_max_mhz: int | None = None
    clock_event_reasons: list[str] = []

    temperature_c: int | None = None
    temperature_slowdown_c: int | None = None
    utilisation_percent: int | None = None
    competing_processes: int | None = None
    competing_memory_bytes: int | None = None

    ecc: bool | None = None
    ecc_default: bool | None = None
    ecc_uncorrected: int | None = None  # since the driver was loaded
    remap_pending: bool | None = None  # a row waits for a reset to be remapped
    persistence: bool | None = None
    mig: bool | None = None
    compute_mode: str | None = None
    virtualisation: str | None = None

    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None


class Driver(Part):
    version: str | None = None  # "580.159.03"
    cuda: str | None = None  # the newest CUDA it speaks, "13.0"
    kernel_module: str | None = None  # loaded in the kernel, also where NVML is out of reach
    nvml_failure: str | None = None
    pci_devices: int = 0  # NVIDIA display or compute devices on the PCI bus


class Cgroup(Part):
    """Limits that the kernel sets to this process. None: no limit."""

    version: int | None = None
    cpus: float | None = None
    memory_bytes: int | None = None


class Host(Part):
    hostname: str | None = None  # see Environment.identifiers
    cpu: str | None = None
    cpu_vendor: str | None = None
    architecture: str | None = None
    instruction_sets: list[str] = []
    cores: int | None = None
    threads: int | None = None
    affinity: str | None = None  # "0-7,16"
    affinity_threads: int | None = None
    frequency_mhz: float | None = None
    frequency_max_mhz: float | None = None
    governor: str | None = None
    frequency_driver: str | None = None
    energy_preference: str | None = None
    turbo: bool | None = None
    numa_nodes: int | None = None
    hypervisor: bool | None = None
    load_1m: float | None = None
    ram_bytes: int | None = None
    ram_available_bytes: int | None = None
    on_battery: bool | None = None
    os: str | None = None
    kernel: str | None = None
    libc: str | None = None
    wsl: bool = False
    root_user: bool = False
    cgroup: Cgroup = Cgroup()


class Torch(Part):
    """The torch that the worker imported."""

    version: str
    git: str | None = None
    cuda: str | None = None  # that it was built for, "13.0"
    hip: str | None = None
    build: str | None = None  # torch.__config__.show()
    architectures: list[str] = []  # "sm_90", "compute_90"
    cuda_usable: bool | None = None  # None: not asked of it
    cuda_failure: str | None = None
    requires_triton: str | None = None  # as its own metadata pins it, "3.6.0"
    settings: dict[str, str] = {}  # switches that change numbers, such as TF32


class Library(Part):
    """A shared library or program as loaded: `version` is what it says of itself."""

    version: str | None = None
    file: str | None = None


class Distribution(Part):
    """An installed Python distribution; `record_sha256` is the hash of its RECORD file."""

    name: str
    version: str
    record_sha256: str | None = None


class Software(Part):
    nsabench: str
    python: str
    python_implementation: str
    python_compiler: str
    torch: Torch | None = None
    triton: str | None = None
    numpy: str | None = None
    # cuda_driver, cuda_runtime, cublas, cublaslt, cudnn, nccl, nvrtc, ptxas, ptxas_blackwell
    libraries: dict[str, Library] = {}
    distributions: list[Distribution] = []
    lock_sha256: str | None = None

    def installed(self, name: str) -> str | None:
        """The version of a distribution, whether or not anything imported it."""
        return next((d.version for d in self.distributions if d.name == name), None)


class Container(Part):
    # docker, podman, apptainer, kubernetes, …; venv: `images venv`; None: none, as far as is known
    runtime: str | None = None
    image_digest: str | None = None
    combo: str | None = None

    @property
    def shut_in(self) -> bool:
        """Whether it hides devices and users of the host, as a virtual environment does not."""
        return self.runtime not in (None, "venv")


class Checkout(Part):
    """The state of a git checkout that code of this run came from."""

    of: Literal["nsabench", "kernels"]
    commit: str | None = None
    dirty: bool | None = None  # tracked files differ from the commit
    diff_sha256: str | None = None  # of that difference
    untracked: int | None = None


class Run(Part):
    run_id: str | None = None
    device: str | None = None
    command: list[str] = []
    shard: str | None = None
    matrices: dict[str, str] = {}  # name -> sha256
    seeds: list[int] = []
    kernels: str | None = None  # file name of the user's kernels
    kernels_sha256: str | None = None
    checkouts: list[Checkout] = []
    variables: dict[str, str] = {}  # environment variables, from an allow-list


# How serial, UUID, hostname, PCI bus id and the like are written.
#   run     HMAC-SHA256 with a salt that is thrown away: comparable within this file only
#   shared  HMAC-SHA256 with the salt in NSABENCH_ID_SALT_FILE: comparable across its owner's runs
#   plain   as they are
Identifiers = Literal["run", "shared", "plain"]


class Environment(Part):
    """What this machine is. `complete`: nothing is missing of what the numbers may depend on."""

    schema_version: int = SCHEMA_VERSION
    collected: Moment
    complete: bool
    identifiers: Identifiers
    gpus: list[Gpu] = []
    driver: Driver = Driver()
    host: Host = Host()
    software: Software
    container: Container = Container()
    sandbox: str | None = None  # what workers are kept from; None: no worker was asked
    run: Run = Run()
    absent: dict[str, str] = {}  # "software.torch" -> why it could not be told

    @classmethod
    def read(cls, path: Path) -> Environment:
        """What the file says. Raises `OSError`, and `OutOfBounds` when it is no environment."""
        return reading.parse_json(reading.read(path, limits.ENVIRONMENT), limits.ENVIRONMENT, cls)

    @property
    def gpu(self) -> Gpu | None:
        """The device in use, or the only one there is."""
        used = [gpu for gpu in self.gpus if gpu.used]
        if used:
            return used[0]
        return self.gpus[0] if len(self.gpus) == 1 else None

    @property
    def sm(self) -> str | None:
        """The architecture of that device, such as "sm_90"."""
        gpu = self.gpu
        if gpu is None or gpu.compute_capability is None:
            return None
        return "sm_" + gpu.compute_capability.replace(".", "")
