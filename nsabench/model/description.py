"""What a worker with torch says about the software and the device that it sees."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from nsabench.model.measurement import Message


class DescribedSoftware(Message):
    """Versions as the loaded code answers them; None if they could not be read."""

    model_config = ConfigDict(frozen=True)

    torch: str | None = None
    torch_cuda: str | None = None  # the CUDA that it was built for, "13.0"
    torch_architectures: tuple[str, ...] = ()  # "sm_90", "compute_90"
    cuda_usable: bool | None = None  # None: not asked
    cuda_driver: str | None = None  # the newest CUDA of the loaded driver, "13.0"
    triton: str | None = None
    numpy: str | None = None
    cudnn: str | None = None
    ptxas: str | None = None
    ptxas_blackwell: str | None = None


class DescribedDevice(Message):
    """A device as torch sees it."""

    model_config = ConfigDict(frozen=True)

    type: str = ""  # "cuda" or "cpu"
    name: str | None = None
    compute_capability: str | None = None  # such as "9.0"
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    nvml_index: int | None = None  # its place in NVML's order
    capability: str | None = None  # the instructions that torch uses on a CPU, such as "AVX512"


class Described(Message):
    """absent: "software.torch" -> why it could not be read. sandbox: what it keeps from kernels."""

    kind: Literal["described"] = "described"
    software: DescribedSoftware
    device: DescribedDevice
    absent: dict[str, str] = Field(default_factory=dict)
    sandbox: str | None = None
