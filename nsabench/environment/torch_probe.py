"""What only a process with torch in it can tell. Runs in the worker; never fails.

A value that cannot be had is None, and `NAME.why` beside it says why. Versions of libraries are
what the loaded library answers, not what some package on disk is called. Nothing in it identifies
the machine: which device is meant is told by its place in NVML's order.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from nsabench.environment import nvml
from nsabench.environment.identifiers import Redactor
from nsabench.messages import Described

# What an import of torch or triton ends in when the installation is broken.
_IMPORT_FAILURES = (ImportError, OSError, RuntimeError, AttributeError, TypeError, ValueError)
# What a call into a library that is missing, too old or built otherwise ends in.
_CALL_FAILURES = (AttributeError, RuntimeError, OSError, AssertionError, TypeError, ValueError)
_PTXAS_TIMEOUT_S = 10.0

Software = dict[str, str | None]
DeviceFacts = dict[str, str | int | float | None]


def describe(device: str) -> Described:
    """Tell about torch, triton, their libraries, and `device` ("cpu", "cuda" or "cuda:1")."""
    software: Software = {}
    torch = _import("torch", software)
    triton = _import("triton", software)
    _import("numpy", software)
    if torch is not None:
        _describe_torch(torch, software)
    if triton is not None:
        _describe_ptxas(Path(triton.__file__).parent, software)
    facts: DeviceFacts = {"type": device.partition(":")[0]}
    if torch is not None and device.startswith("cuda"):
        _describe_cuda_device(torch, device, facts, software)
    elif torch is not None:
        _describe_cpu(torch, facts)
    # After the device was touched: a library that loads lazily is loaded by now, if ever.
    _describe_libraries(torch, software)
    return Described(software=_without_names(software), device=facts)


def _without_names(software: Software) -> Software:
    """Paths and messages without the user's home folder and the host's name."""
    redact = Redactor(plain=False).text
    return {
        key: redact(value) if value and key.endswith((".file", ".why")) else value
        for key, value in software.items()
    }


def pci_bus_id(torch: Any, index: int) -> str | None:
    """Such as "0000:19:00.0": how NVML is told which device torch means."""
    try:
        p = torch.cuda.get_device_properties(index)
        return f"{p.pci_domain_id:04x}:{p.pci_bus_id:02x}:{p.pci_device_id:02x}.0"
    except (RuntimeError, AssertionError):
        return None
    except AttributeError:  # an older torch does not say, but the CUDA runtime does
        return _runtime_bus_id(index)


def _import(name: str, software: Software) -> Any:
    try:
        module = import_module(name)
    except _IMPORT_FAILURES as error:
        software[name] = None
        software[f"{name}.why"] = _sentence(error)
        return None
    software[name] = str(getattr(module, "__version__", "")) or None
    return module


def _attempt(software: Software, name: str, read: Callable[[], Any]) -> None:
    """Keep what `read` returns as text, or None and the reason."""
    try:
        value = read()
    except _CALL_FAILURES as error:
        software[name] = None
        software[f"{name}.why"] = _sentence(error)
        return
    software[name] = str(value) if value is not None else None
    if value is None:
        software[f"{name}.why"] = "this build of torch has none"


def _sentence(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else type(error).__name__


def _describe_torch(torch: Any, software: Software) -> None:
    software["torch.git"] = getattr(torch.version, "git_version", None)
    software["torch.cuda"] = getattr(torch.version, "cuda", None)
    software["torch.hip"] = getattr(torch.version, "hip", None)
    _attempt(software, "torch.build", lambda: torch.__config__.show().strip())
    _attempt(software, "torch.architectures", lambda: _architectures(torch))
    settings: dict[str, Callable[[], Any]] = {
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "matmul_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
        "matmul_fp16_reduced": lambda: (
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
        ),
        "cudnn_tf32": lambda: torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
        "threads": torch.get_num_threads,
    }
    for name, read in settings.items():
        _attempt(software, f"setting.{name}", read)


def _architectures(torch: Any) -> str:
    # get_arch_list() answers [] where CUDA cannot be used; the flags are in the binary regardless.
    flags = torch._C._cuda_getArchFlags() if hasattr(torch._C, "_cuda_getArchFlags") else None
    return str(flags or "")


def _describe_cpu(torch: Any, facts: DeviceFacts) -> None:
    facts["threads"] = torch.get_num_threads()
    try:
        facts["capability"] = str(torch.backends.cpu.get_cpu_capability())
    except _CALL_FAILURES:
        facts["capability"] = None


def _describe_cuda_device(torch: Any, device: str, facts: DeviceFacts, software: Software) -> None:
    try:
        if not torch.cuda.is_available():
            torch.cuda.init()  # raises with the reason that is_available() keeps to itself
        index = int(device.partition(":")[2] or torch.cuda.current_device())
        properties = torch.cuda.get_device_properties(index)
    except (*_CALL_FAILURES, torch.cuda.DeferredCudaCallError) as error:
        software["torch.cuda_usable"] = "false"
        software["torch.cuda_usable.why"] = _sentence(error)
        return
    software["torch.cuda_usable"] = "true"
    facts["index"] = index
    facts["count"] = torch.cuda.device_count()
    facts["name"] = properties.name
    facts["compute_capability"] = f"{properties.major}.{properties.minor}"
    facts["memory_bytes"] = properties.total_memory
    facts["multiprocessors"] = properties.multi_processor_count
    facts["l2_bytes"] = getattr(properties, "L2_cache_size", None)
    facts["shared_memory_bytes"] = getattr(properties, "shared_memory_per_block_optin", None)
    facts["warp_size"] = getattr(properties, "warp_size", None)
    bus_id = pci_bus_id(torch, index)
    watched = nvml.Device.by_bus_id(bus_id) if bus_id is not None else None
    # A MIG slice has its parent's bus id, and NVML's sensors are the parent's too.
    facts["nvml_index"] = watched.index() if watched is not None else None


def _describe_ptxas(triton: Path, software: Software) -> None:
    """The assemblers that this triton calls: its own, or one that the environment names."""
    for name, program in (("ptxas", "ptxas"), ("ptxas_blackwell", "ptxas-blackwell")):
        named = os.environ.get(f"TRITON_{name.upper()}_PATH")
        places = [
            *([Path(named)] if named else []),
            triton / "backends/nvidia/bin" / program,  # triton 3
            triton / "common/../third_party/cuda/bin" / program,  # triton 2
        ]
        path = next((p for p in places if p.is_file()), None)
        if path is None:
            software[name] = None
            software[f"{name}.why"] = "this triton has none"
            continue
        _attempt(software, name, lambda path=path: _ptxas_version(path))  # type: ignore[misc]
        software[f"{name}.file"] = _portable(str(path.resolve()))


def _ptxas_version(path: Path) -> str:
    try:
        said = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=_PTXAS_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        ).stdout
    except subprocess.TimeoutExpired:
        raise OSError(f"ptxas did not answer in {_PTXAS_TIMEOUT_S:g} s") from None
    found = re.search(r"\bV(\d+\.\d+\.\d+)", said)
    if found is None:
        raise ValueError("ptxas names no version")
    return found[1]


# --- shared libraries


def _describe_libraries(torch: Any, software: Software) -> None:
    mapped = _mapped_libraries()
    asks: dict[str, tuple[str, Callable[[ctypes.CDLL], str]]] = {
        "cuda_driver": ("libcuda", lambda lib: _packed(lib, "cuDriverGetVersion")),
        "cuda_runtime": ("libcudart", lambda lib: _packed(lib, "cudaRuntimeGetVersion")),
        "cublas": ("libcublas", lambda lib: _property(lib, "cublasGetProperty")),
        "cublaslt": ("libcublasLt", lambda lib: _property(lib, "cublasLtGetProperty")),
        "nvrtc": ("libnvrtc", _nvrtc_version),
    }
    for name, (library, ask) in asks.items():
        path = _mapped(mapped, library)
        if path is None:
            software[name] = None
            software[f"{name}.why"] = f"{library} is not loaded"
            continue
        _attempt(software, name, lambda ask=ask, path=path: ask(ctypes.CDLL(path)))  # type: ignore[misc]
        software[f"{name}.file"] = _portable(path)
    if torch is not None:
        _attempt(software, "cudnn", lambda: _cudnn_version(torch.backends.cudnn.version()))
        _attempt(software, "nccl", lambda: ".".join(map(str, torch.cuda.nccl.version())))
    for name in ("cudnn", "nccl"):
        path = _mapped(mapped, f"lib{name}")
        if path is not None:
            software[f"{name}.file"] = _portable(path)


def _portable(file: str) -> str:
    """The same text on every machine for a file of this Python installation."""
    path = Path(file)
    if path.is_relative_to(sys.prefix):
        return str("{prefix}" / path.relative_to(sys.prefix))
    return file


def _mapped_libraries() -> list[str]:
    """Paths of the shared libraries in this process."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return sorted(p for p in paths if ".so" in Path(p).name)


def _mapped(paths: list[str], library: str) -> str | None:
    """The path of `library`, whose file a wheel may have given a hash ("libcudart-1a2b3c4d.so")."""
    named = re.compile(rf"{library}(-[0-9a-f]{{8}})?\.so")
    return next((p for p in paths if named.match(Path(p).name)), None)


def _packed(library: ctypes.CDLL, function: str) -> str:
    """CUDA packs its versions as 1000 * major + 10 * minor."""
    value = ctypes.c_int()
    _check(getattr(library, function)(ctypes.byref(value)), function)
    return f"{value.value // 1000}.{value.value % 1000 // 10}"


def _property(library: ctypes.CDLL, function: str) -> str:
    numbers = []
    for which in range(3):  # MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL of libraryPropertyType
        value = ctypes.c_int()
        _check(getattr(library, function)(which, ctypes.byref(value)), function)
        numbers.append(str(value.value))
    return ".".join(numbers)


def _nvrtc_version(library: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
    return f"{major.value}.{minor.value}"


def _cudnn_version(packed: int | None) -> str | None:
    """cuDNN 9 packs as 10000 * major + 100 * minor + patch, earlier ones as 1000 * major + …"""
    if packed is None:
        return None
    major, rest = divmod(packed, 10000 if packed >= 90000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _runtime_bus_id(index: int) -> str | None:
    path = _mapped(_mapped_libraries(), "libcudart")
    if path is None:
        return None
    text = ctypes.create_string_buffer(64)
    try:
        _check(ctypes.CDLL(path).cudaDeviceGetPCIBusId(text, len(text), index), "cudaDeviceGet…")
    except _CALL_FAILURES:
        return None
    return text.value.decode("ascii", "replace").lower()


def _check(code: int, function: str) -> None:
    if code != 0:
        raise RuntimeError(f"{function} answered {code}")
