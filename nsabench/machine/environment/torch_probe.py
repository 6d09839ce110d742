"""Read facts that only a process with torch knows. Failures are recorded in `absent`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from nsabench.machine.environment import nvml
from nsabench.machine.environment.identity import redact
from nsabench.model.description import Described, DescribedDevice, DescribedSoftware

# Errors of libraries that are missing, old or built for other devices.
_FAILURES = (
    *(ImportError, AttributeError, RuntimeError, OSError),
    *(AssertionError, TypeError, ValueError, subprocess.TimeoutExpired),
)
_PTXAS_TIMEOUT_S = 10.0


def describe(device: str) -> Described:
    absent: dict[str, str] = {}

    def attempt(name: str, read: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return read(*arguments)
        except _FAILURES as error:
            lines = str(error).strip().splitlines()
            reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
            absent[f"software.{name}"] = redact(reason[:300])
            return None

    modules = {name: attempt(name, import_module, name) for name in ("torch", "triton", "numpy")}
    software = {name: getattr(module, "__version__", None) for name, module in modules.items()}
    facts: dict[str, Any] = {"type": device.partition(":")[0]}
    if (triton := modules["triton"]) is not None:
        software["ptxas"] = attempt("ptxas", _read_ptxas_version, Path(triton.__file__).parent)
    if (torch := modules["torch"]) is not None:
        software["torch_cuda"] = getattr(torch.version, "cuda", None)
        codes = attempt("torch_architectures", _read_architectures, torch)
        software["torch_architectures"] = codes or ()
        software["cudnn"] = attempt("cudnn", _read_cudnn_version, torch)
        if device.startswith("cuda"):
            described = attempt("cuda_usable", describe_cuda_device, torch, device)
            facts |= described or {}
            software["cuda_usable"] = described is not None
            software["cuda_driver"] = attempt("cuda_driver", _read_driver_version, torch)
        else:
            facts["capability"] = attempt("capability", torch.backends.cpu.get_cpu_capability)
    return Described(
        software=DescribedSoftware.model_validate(software),
        device=DescribedDevice.model_validate(facts),
        absent=absent,
    )


def describe_cuda_device(torch: Any, device: str) -> dict[str, Any]:
    """Return what torch says about a device. Raises `RuntimeError` if CUDA cannot be used."""
    try:
        if not torch.cuda.is_available():
            torch.cuda.init()  # raises with the reason, which is_available() does not give
        index = int(device.partition(":")[2] or torch.cuda.current_device())
        properties = torch.cuda.get_device_properties(index)
    except torch.cuda.DeferredCudaCallError as error:
        raise RuntimeError(str(error)) from error
    # For a MIG slice this is the whole device, which has the same bus id.
    watched = nvml.Device.by_torch(properties)
    return {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "nvml_index": watched.index() if watched is not None else None,
    }


def _read_architectures(torch: Any) -> list[str]:
    # get_arch_list() is empty if CUDA cannot be used; these flags are part of the binary.
    read_flags = getattr(torch._C, "_cuda_getArchFlags", None)  # None: a torch for CPUs
    return str(read_flags() or "").split() if read_flags is not None else []


def _read_driver_version(torch: Any) -> str:
    packed = torch._C._cuda_getDriverVersion()
    return f"{packed // 1000}.{packed % 1000 // 10}"


def _read_cudnn_version(torch: Any) -> str:
    """Unpack cuDNN's 10000 * major + 100 * minor + patch (before version 9, 1000 * major)."""
    packed = torch.backends.cudnn.version()
    if packed is None:
        raise RuntimeError("this torch has no cuDNN")
    major, rest = divmod(packed, 10000 if packed >= 90000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _read_ptxas_version(triton: Path) -> str:
    done = subprocess.run(
        [os.environ.get("TRITON_PTXAS_PATH") or triton / "backends/nvidia/bin/ptxas", "--version"],
        capture_output=True,
        text=True,
        timeout=_PTXAS_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    match = re.search(r"\bV(\d+\.\d+\.\d+)", done.stdout)
    if match is None:
        raise ValueError("ptxas names no version")
    return match[1]
