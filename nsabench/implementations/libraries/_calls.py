"""Helpers for adapters: find a library's function, check its parameters, convert blocks."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import baseline
from nsabench.ops.selection_blocks import OP as _SELECTION_BLOCKS
from nsabench.registry import Package

F = TypeVar("F", bound=Callable[..., Any])


@cache
def find_function(package: Package, where: str, *takes: str) -> Any:
    """Return the function `where`. Raises `Unsupported` if it or a parameter is missing."""
    module, _, name = where.partition(":")
    item = _import_library(package, module)
    try:
        for part in name.split("."):
            item = getattr(item, part)
        if takes:
            inspect.signature(item).bind(**dict.fromkeys(takes))
    except ValueError:  # a compiled function has no signature
        pass
    except (AttributeError, TypeError) as error:
        raise Unsupported(
            f"{package.name} {package.version} is not supported: {where}: {error}"
        ) from error
    return item


def _import_library(package: Package, module: str) -> Any:
    if not package.version:
        raise Unsupported(f"{package.name} is not installed: {package.install}")
    release = f"{package.name} {package.version}"
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError, OSError, AttributeError, TypeError) as error:
        raise Unsupported(f"{release} fails to import: {type(error).__name__}: {error}") from error


def selected_blocks(name: str, package: Package, **declared: Any) -> Callable[[F], F]:
    # Libraries count a repeated block twice. For a query without blocks, their output is undefined.
    left_out = ("repeated", "empty_rows")
    fits = tuple(d for d in _SELECTION_BLOCKS.distributions if d not in left_out)
    return baseline("selection_blocks", name, package=package, distributions=fits, **declared)


def blocks_first(block_indices: Tensor) -> Tensor:
    """Sort each row, with -1 at its end, since libraries are told how many blocks to read."""
    none = torch.iinfo(block_indices.dtype).max
    ordered = block_indices.where(block_indices >= 0, none).sort(-1).values
    return ordered.where(ordered != none, -1)


def flatten_batch(*tensors: Tensor) -> list[Tensor]:
    return [x.flatten(0, 1).contiguous() for x in tensors]


def every_block_is_whole(keys: int, block_size: int, blocks: int) -> bool:
    return keys % block_size == 0 and keys >= blocks * block_size


@_torch.memoised(8)
def first_of_heads(heads: int, step: int, device: torch.device) -> Tensor:
    return torch.arange(0, heads * step, step, dtype=torch.int32, device=device)


def refuse_float32(q: Tensor, name: str) -> None:
    if q.dtype == torch.float32:
        raise Unsupported(f"{name} takes float16 and bfloat16 only")


def is_capturing() -> bool:
    return torch.cuda.is_available() and bool(torch.cuda.is_current_stream_capturing())
