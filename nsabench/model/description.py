"""How a worker describes the software and the device that it sees."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    model_serializer,
)

from nsabench.model.measurement import Message

LIBRARIES = (
    "cuda_driver",
    "cublas",
    "cudnn",
    "nccl",
    "ptxas",
    "ptxas_blackwell",
)
_SETTING, _WHY = "setting.", ".why"


class _Description(BaseModel):
    """In JSON a flat object of what was said and no more; what another version says stays in it."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        named = {
            field.alias or name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if name in self.model_fields_set
        }
        return named | (self.model_extra or {})


class DescribedSoftware(_Description):
    """Versions as the loaded code answers them. None: it was asked for and could not be had.

    `NAME.why` says why there is none.
    """

    __pydantic_extra__: dict[str, str | None]

    torch: str | None = None
    triton: str | None = None
    numpy: str | None = None
    torch_git: str | None = Field(None, alias="torch.git")  # the commit
    torch_cuda: str | None = Field(None, alias="torch.cuda")  # that it was built with
    torch_hip: str | None = Field(None, alias="torch.hip")
    torch_build: str | None = Field(None, alias="torch.build")
    # The ones that it was compiled for, with blanks between.
    torch_architectures: str | None = Field(None, alias="torch.architectures")
    torch_cuda_usable: str | None = Field(None, alias="torch.cuda_usable")  # "true", "false"
    cuda_driver: str | None = None
    cublas: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    ptxas: str | None = None
    ptxas_blackwell: str | None = None

    @property
    def libraries(self) -> dict[str, str | None]:
        """The versions of the libraries and programs in `LIBRARIES`."""
        return {name: getattr(self, name) for name in LIBRARIES}

    @property
    def settings(self) -> dict[str, str]:
        """Settings of torch that could be read, by name."""
        return {
            key.removeprefix(_SETTING): value
            for key, value in self.__pydantic_extra__.items()
            if key.startswith(_SETTING) and not key.endswith(_WHY) and value
        }

    def why(self, name: str) -> str | None:
        """Why something, by its name in JSON, could not be had."""
        return self.__pydantic_extra__.get(name + _WHY)


class DescribedDevice(_Description):
    """A device as torch sees it: `cuda` with what follows, or `cpu` with threads and capability."""

    __pydantic_extra__: dict[str, str | int | float | None]

    type: str = ""
    index: int | None = None  # among those that torch sees
    count: int | None = None  # of those that torch sees
    name: str | None = None
    compute_capability: str | None = None  # such as "9.0"
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    shared_memory_bytes: int | None = None  # the most that a block may have
    warp_size: int | None = None
    nvml_index: int | None = None  # its place in NVML's order
    threads: int | None = None  # of torch on a CPU
    capability: str | None = None  # the instructions that torch uses on a CPU, such as "AVX512"


class Described(Message):
    """sandbox: what is kept from foreign code; None without a sandbox."""

    kind: Literal["described"] = "described"
    software: DescribedSoftware
    device: DescribedDevice
    sandbox: str | None = None
