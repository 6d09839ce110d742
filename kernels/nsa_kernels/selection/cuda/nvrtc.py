"""Compile CUDA C++ to cubins and load kernels, by NVRTC and ``cuda.core``.

NVRTC also compiles for GPUs that this machine does not have. Cubins are kept on disk, under a key
that cuda.core makes from source, options, architecture and version of NVRTC.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ...launch.device import normalised
from ...launch.folders import cache_folder

REMEDY = "install nsa-kernels[cuda] with the cuda-bindings and the NVRTC of torch's CUDA version"
CACHE_LIMIT_BYTES = 256 << 20


class Unsupported(RuntimeError):
    """The CUDA C++ kernels cannot serve a call on this machine. The message says why."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel (``rows``, ``ranges``) and its constants, which ``attend.cuh`` explains."""

    kernel: str
    d: int
    dv: int
    bf16: bool
    warps: int
    keys: int
    stages: int
    spans: int = 0

    @property
    def function(self) -> str:
        return f"{self.kernel}_cuda_kernel"

    @property
    def threads(self) -> int:
        return self.warps * 32

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of dynamic shared memory of a block: the buffers of all warps."""
        return self.warps * self.stages * self.keys * (self.d + self.dv) * 2

    @property
    def constants(self) -> dict[str, int]:
        macros = {
            "D": self.d,
            "DV": self.dv,
            "BF16": int(self.bf16),
            "WARPS": self.warps,
            "KEYS": self.keys,
            "STAGES": self.stages,
        }
        return macros | ({"SPANS": self.spans} if self.spans else {})


@functools.cache
def _core() -> ModuleType:
    try:
        import cuda.core
        import cuda.core.utils
    except ImportError as error:
        raise Unsupported(f"cuda.core cannot be imported ({error}); {REMEDY}") from error
    return cuda.core


@functools.cache
def _nvrtc() -> tuple[str, frozenset[int]]:
    """Return the version of NVRTC and the compute capabilities that it compiles for."""
    _core()
    from cuda.bindings import nvrtc

    try:
        status, major, minor = nvrtc.nvrtcVersion()
        status_archs, archs = nvrtc.nvrtcGetSupportedArchs()
    except RuntimeError as error:  # the bindings raise it if they find no library
        raise Unsupported(f"NVRTC was not found ({_first_line(error)}); {REMEDY}") from error
    if int(status) or int(status_archs):
        raise Unsupported(f"NVRTC reports an error ({status}, {status_archs}); {REMEDY}")
    return f"{major}.{minor}", frozenset(map(int, archs))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def compiler() -> str:
    """Return name and version of the compiler, or raise ``Unsupported``."""
    return f"NVRTC {_nvrtc()[0]}"


def check_capability(capability: int) -> None:
    """Raise ``Unsupported`` if NVRTC cannot compile for a compute capability, such as 89."""
    if capability < 80:
        raise Unsupported(f"the CUDA C++ kernels need sm_80 or newer, this is sm_{capability}")
    version, known = _nvrtc()
    if capability not in known:
        raise Unsupported(f"NVRTC {version} does not compile for sm_{capability}; {REMEDY}")


@functools.cache
def source(kernel: str) -> str:
    """Return the source of a kernel and of the shared header as one text."""
    here = Path(__file__).parent
    names = ("attend.cuh", f"{kernel}.cu")
    return "".join(f'#line 1 "{name}"\n{(here / name).read_text()}' for name in names)


@functools.cache
def _cache(folder: Path) -> Any:
    """Return the cache on disk. If it is not writable, return None: each process then compiles."""
    try:
        return _core().utils.FileStreamProgramCache(folder, max_size_bytes=CACHE_LIMIT_BYTES)
    except OSError:
        return None


def _compile(variant: Variant, capability: int) -> Any:
    check_capability(capability)
    core = _core()
    options = core.ProgramOptions(
        name=f"{variant.kernel}.cu",
        arch=f"sm_{capability}",
        std="c++17",
        define_macro=[(name, str(value)) for name, value in variant.constants.items()],
    )
    program = core.Program(source(variant.kernel), "c++", options)
    return program.compile("cubin", cache=_cache(cache_folder() / "cubins"))


def cubin(variant: Variant, capability: int) -> bytes:
    """Return machine code for a compute capability such as 89. No GPU is needed.

    Raises:
        Unsupported: NVRTC is missing, or does not know the GPU.
        cuda.core's NVRTCError: the source does not compile. The message is the compiler's log.
    """
    return bytes(_compile(variant, capability).code)


@functools.cache
def _load(variant: Variant, device: int) -> Any:
    from cuda.bindings import driver

    major, minor = torch.cuda.get_device_capability(device)
    kernel = _compile(variant, major * 10 + minor).get_kernel(variant.function)
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (status,) = driver.cuKernelSetAttribute(attribute, variant.shared_bytes, kernel.handle, device)
    if int(status):
        raise Unsupported(f"{variant} does not fit this GPU: {status}")
    return kernel


def _bind_thread(device: int) -> None:
    """Give a thread that has not called CUDA yet the context that torch uses."""
    from cuda.bindings import driver

    _, context = driver.cuCtxGetCurrent()
    if not int(context):
        _core().Device(device).set_current()


def launch(
    variant: Variant, grid: tuple[int, int, int], device: torch.device, arguments: tuple[Any, ...]
) -> None:
    """Launch a kernel on torch's current stream of the device.

    Args:
        arguments: tensors (their addresses are passed), int (as 64-bit) and float (as double).

    Raises:
        ValueError: the device is not a CUDA device.
        Unsupported: NVRTC is missing or does not support the GPU, or the kernel does not fit.
    """
    if device.type != "cuda":
        raise ValueError(f"{variant.kernel}: the CUDA C++ kernel needs CUDA tensors, got {device}")
    core = _core()
    index = torch.cuda.current_device() if device.index is None else device.index
    config = core.LaunchConfig(grid=grid, block=variant.threads, shmem_size=variant.shared_bytes)
    read = [normalised(a) if isinstance(a, torch.Tensor) else a for a in arguments]
    plain = (a.data_ptr() if isinstance(a, torch.Tensor) else a for a in read)
    with torch.cuda.device(index):
        _bind_thread(index)
        stream = core.Stream.from_handle(torch.cuda.current_stream(index).cuda_stream)
        core.launch(stream, config, _load(variant, index), *plain)
