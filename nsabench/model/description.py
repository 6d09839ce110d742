"""The software and the device, as a worker with torch sees them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nsabench.model.measurement import Message


class DescribedSoftware(Message, frozen=True):
    torch: str | None = None  # its version. None, in all fields: it could not be read
    torch_cuda: str | None = None  # the CUDA that torch was built for, "13.0"
    torch_architectures: tuple[str, ...] = ()  # "sm_90", "compute_90"
    cuda_usable: bool | None = None  # None: not tried
    cuda_driver: str | None = None  # the newest CUDA that the driver supports, "13.0"
    triton: str | None = None
    numpy: str | None = None
    cudnn: str | None = None
    ptxas: str | None = None


class DescribedDevice(Message, frozen=True):
    type: str = ""  # "cuda" or "cpu"
    name: str | None = None
    compute_capability: str | None = None  # such as "9.0"
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    nvml_index: int | None = None
    capability: str | None = None  # the instructions that torch uses on a CPU, such as "AVX512"


class Described(Message):
    kind: Literal["described"] = "described"
    software: DescribedSoftware
    device: DescribedDevice
    absent: dict[str, str] = Field(default_factory=dict)  # "software.torch" -> why it is not known
    sandbox: str | None = None  # what the sandbox denies to kernels
