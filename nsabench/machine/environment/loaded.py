"""Reads the versions of the libraries and programs that a process with torch has loaded."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# Exceptions of calls into a library that is missing, too old or built otherwise.
CALL_FAILURES = (AttributeError, RuntimeError, OSError, AssertionError, TypeError, ValueError)
_PTXAS_TIMEOUT_S = 10.0

Software = dict[str, str | None]


def attempt(software: Software, name: str, read: Callable[[], Any]) -> None:
    """Store what `read` returns as text, or None and the reason."""
    try:
        value = read()
    except CALL_FAILURES as error:
        software[name] = None
        software[f"{name}.why"] = sentence(error)
        return
    software[name] = str(value) if value is not None else None
    if value is None:
        software[f"{name}.why"] = "this build of torch has none"


def sentence(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else type(error).__name__


def describe_ptxas(triton: Path, software: Software) -> None:
    """Store the assemblers of this triton: its own, or those that the environment names."""
    for name, program in (("ptxas", "ptxas"), ("ptxas_blackwell", "ptxas-blackwell")):
        named = os.environ.get(f"TRITON_{name.upper()}_PATH")
        places = [
            *([Path(named)] if named else []),
            triton / "backends/nvidia/bin" / program,
        ]
        path = next((p for p in places if p.is_file()), None)
        if path is None:
            software[name] = None
            software[f"{name}.why"] = "this triton has none"
            continue
        attempt(software, name, partial(_ptxas_version, path))


def _ptxas_version(path: Path) -> str:
    try:
        output = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=_PTXAS_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        ).stdout
    except subprocess.TimeoutExpired:
        raise OSError(f"ptxas did not answer in {_PTXAS_TIMEOUT_S:g} s") from None
    match = re.search(r"\bV(\d+\.\d+\.\d+)", output)
    if match is None:
        raise ValueError("ptxas names no version")
    return match[1]


def describe_libraries(torch: Any, software: Software) -> None:
    mapped = _mapped_libraries()
    asks: dict[str, tuple[str, Callable[[ctypes.CDLL], str]]] = {
        "cuda_driver": ("libcuda", _cuda_driver_version),
        "cublas": ("libcublas", _cublas_version),
    }
    for name, (library, ask) in asks.items():
        path = _mapped(mapped, library)
        if path is None:
            software[name] = None
            software[f"{name}.why"] = f"{library} is not loaded"
            continue
        attempt(software, name, partial(_ask, path, ask))
    if torch is not None:
        attempt(software, "cudnn", lambda: _cudnn_version(torch.backends.cudnn.version()))
        attempt(software, "nccl", lambda: ".".join(map(str, torch.cuda.nccl.version())))


def _ask(path: str, ask: Callable[[ctypes.CDLL], str]) -> str:
    return ask(ctypes.CDLL(path))  # it is mapped already, so this loads nothing new


def _mapped_libraries() -> list[str]:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return sorted(p for p in paths if ".so" in Path(p).name)


def _mapped(paths: list[str], library: str) -> str | None:
    """Return the path of `library`; a wheel may add a hash ("libcudart-1a2b3c4d.so")."""
    named = re.compile(rf"{library}(-[0-9a-f]{{8}})?\.so")
    return next((p for p in paths if named.match(Path(p).name)), None)


def _cuda_driver_version(library: ctypes.CDLL) -> str:
    """CUDA packs its versions as 1000 * major + 10 * minor."""
    value = ctypes.c_int()
    _check(library.cuDriverGetVersion(ctypes.byref(value)), "cuDriverGetVersion")
    return f"{value.value // 1000}.{value.value % 1000 // 10}"


def _cublas_version(library: ctypes.CDLL) -> str:
    numbers = []
    for which in range(3):  # MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL of libraryPropertyType
        value = ctypes.c_int()
        _check(library.cublasGetProperty(which, ctypes.byref(value)), "cublasGetProperty")
        numbers.append(str(value.value))
    return ".".join(numbers)


def _cudnn_version(packed: int | None) -> str | None:
    """cuDNN 9 packs as 10000 * major + 100 * minor + patch, earlier ones as 1000 * major + …"""
    if packed is None:
        return None
    major, rest = divmod(packed, 10000 if packed >= 90000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def runtime_bus_id(index: int) -> str | None:
    path = _mapped(_mapped_libraries(), "libcudart")
    if path is None:
        return None
    text = ctypes.create_string_buffer(64)
    try:
        _check(ctypes.CDLL(path).cudaDeviceGetPCIBusId(text, len(text), index), "cudaDeviceGet…")
    except CALL_FAILURES:
        return None
    return text.value.decode("ascii", "replace").lower()


def _check(code: int, function: str) -> None:
    if code != 0:
        raise RuntimeError(f"{function} answered {code}")
