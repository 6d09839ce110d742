"""Reads what only a process with torch can tell. Runs in the worker and never fails.

A value that cannot be read is None, and `NAME.why` says why. Versions are those that the loaded
libraries return. Nothing identifies the machine: a device is named by its place in NVML's order.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from nsabench.machine.environment import nvml
from nsabench.machine.environment.loaded import (
    CALL_FAILURES,
    Software,
    attempt,
    describe_libraries,
    describe_ptxas,
    runtime_bus_id,
    sentence,
)
from nsabench.machine.environment.redaction import redact
from nsabench.model.description import Described, DescribedDevice, DescribedSoftware

# What an import of torch or triton ends in when the installation is broken.
_IMPORT_FAILURES = (ImportError, OSError, RuntimeError, AttributeError, TypeError, ValueError)
DeviceFacts = dict[str, str | int | float | None]


def describe(device: str) -> Described:
    """Describe torch, triton, their libraries, and the device ("cpu" or "cuda")."""
    software: Software = {}
    torch = _import("torch", software)
    triton = _import("triton", software)
    _import("numpy", software)
    if torch is not None:
        _describe_torch(torch, software)
    if triton is not None:
        describe_ptxas(Path(triton.__file__).parent, software)
    facts: DeviceFacts = {"type": device.partition(":")[0]}
    if torch is not None and device.startswith("cuda"):
        _describe_cuda_device(torch, device, facts, software)
    elif torch is not None:
        _describe_cpu(torch, facts)
    # Libraries that load lazily are loaded once the device was used.
    describe_libraries(torch, software)
    return Described(
        software=DescribedSoftware.model_validate(_without_names(software)),
        device=DescribedDevice.model_validate(facts),
    )


def _without_names(software: Software) -> Software:
    """Remove the user's home folder and the host's name from messages."""
    return {
        key: redact(value) if value and key.endswith(".why") else value
        for key, value in software.items()
    }


def pci_bus_id(torch: Any, index: int) -> str | None:
    """Return the PCI bus id of torch's device, such as "0000:19:00.0"; NVML finds it by that."""
    try:
        p = torch.cuda.get_device_properties(index)
        return f"{p.pci_domain_id:04x}:{p.pci_bus_id:02x}:{p.pci_device_id:02x}.0"
    except (RuntimeError, AssertionError):
        return None
    except AttributeError:  # an older torch does not say, but the CUDA runtime does
        return runtime_bus_id(index)


def _import(name: str, software: Software) -> Any:
    try:
        module = import_module(name)
    except _IMPORT_FAILURES as error:
        software[name] = None
        software[f"{name}.why"] = sentence(error)
        return None
    software[name] = str(getattr(module, "__version__", "")) or None
    return module


def _describe_torch(torch: Any, software: Software) -> None:
    software["torch.git"] = getattr(torch.version, "git_version", None)
    software["torch.cuda"] = getattr(torch.version, "cuda", None)
    software["torch.hip"] = getattr(torch.version, "hip", None)
    attempt(software, "torch.build", lambda: torch.__config__.show().strip())
    attempt(software, "torch.architectures", lambda: _architectures(torch))
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
        attempt(software, f"setting.{name}", read)


def _architectures(torch: Any) -> str:
    # get_arch_list() answers [] where CUDA cannot be used; the flags are in the binary regardless.
    flags = torch._C._cuda_getArchFlags() if hasattr(torch._C, "_cuda_getArchFlags") else None
    return str(flags or "")


def _describe_cpu(torch: Any, facts: DeviceFacts) -> None:
    facts["threads"] = torch.get_num_threads()
    try:
        facts["capability"] = str(torch.backends.cpu.get_cpu_capability())
    except CALL_FAILURES:
        facts["capability"] = None


def _describe_cuda_device(torch: Any, device: str, facts: DeviceFacts, software: Software) -> None:
    try:
        if not torch.cuda.is_available():
            torch.cuda.init()  # raises with the reason that is_available() keeps to itself
        index = int(device.partition(":")[2] or torch.cuda.current_device())
        properties = torch.cuda.get_device_properties(index)
    except (*CALL_FAILURES, torch.cuda.DeferredCudaCallError) as error:
        software["torch.cuda_usable"] = "false"
        software["torch.cuda_usable.why"] = sentence(error)
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
