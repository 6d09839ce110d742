"""Finding a library's function, and seeing that it is called as it still wants to be."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.packages import Package
from nsabench.packages import repository as _repository

_PASSED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@cache
def function(package: Package, where: str, *takes: str) -> Callable[..., Any]:
    """The function or class `MODULE:NAME` of a library.

    takes: the parameters that it is called with, all of them by name.
    Raises `Unsupported` with what to do where the library is not here or cannot be imported, and
    with what changed where it has no such function, lacks one of the parameters, or wants others.
    """
    module, _, name = where.partition(":")
    imported = _imported(package, module)
    found = imported
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise _changed(package, f"has no {module}.{name}")
    refuse_changed(package, name, found, takes)
    return found  # type: ignore[no-any-return]


def refuse_changed(
    package: Package, name: str, call: Callable[..., Any], takes: tuple[str, ...]
) -> None:
    """Raises `Unsupported` where the function can no longer be called with these parameters."""
    try:
        parameters = inspect.signature(call).parameters
    except (TypeError, ValueError):  # compiled: it does not tell
        return
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    known = [p for p in parameters.values() if p.kind in _PASSED]
    missing = [name for name in takes if name not in parameters]
    if missing:
        raise _changed(package, f"{name} takes no {', '.join(missing)}")
    wanted = [p.name for p in known if p.default is p.empty and p.name not in takes]
    if wanted and takes:
        raise _changed(package, f"{name} wants {', '.join(wanted)}, too")


def _changed(package: Package, what: str) -> Unsupported:
    version = package.version or "of no version"
    return Unsupported(f"{package.name} {version} is not one that is known here: {what}")


def _imported(package: Package, module: str) -> Any:
    if not package.version:
        raise Unsupported(f"{package.name} is not here: {package.install}")
    own = package.repository
    with _repository.importable(own) if own is not None else nullcontext():
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise Unsupported(
                f"{package.name} {package.version} cannot be imported: {error}"
            ) from error
        except (RuntimeError, OSError, AttributeError, TypeError) as error:
            # What a library does as it is imported: it looks for a driver, a compiler, a cubin.
            raise Unsupported(
                f"{package.name} {package.version} fails as it is imported: "
                f"{type(error).__name__}: {error}"
            ) from error


def blocks_first(block_indices: Tensor) -> Tensor:
    """The same rows of block indices, ascending, with every -1 behind them: libraries read a row
    up to the number of its blocks."""
    none = torch.iinfo(block_indices.dtype).max
    ordered = block_indices.where(block_indices >= 0, none).sort(-1).values
    return ordered.where(ordered != none, -1)


def refuse_float32(q: Tensor, name: str) -> None:
    """Raises `Unsupported` for what a library of two-byte formats does not take."""
    if q.dtype == torch.float32:
        raise Unsupported(f"{name} takes float16 and bfloat16 only")


def current_stream() -> int:
    """What tells the current CUDA stream from others; 0 without a device."""
    return torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else 0


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_available() and bool(torch.cuda.is_current_stream_capturing())
