"""What one implementation could leave in the process, under the others' feet."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

Settings = dict[str, Any]


def _of(owner: object, name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    return partial(getattr, owner, name), partial(setattr, owner, name)


# How each is read and written; bound before foreign code is imported.
_backends, _cuda = torch.backends, torch.cuda
_OF_TORCH: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "float32_matmul_precision": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "deterministic_algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "cudnn.benchmark": _of(_backends.cudnn, "benchmark"),
    "cudnn.allow_tf32": _of(_backends.cudnn, "allow_tf32"),
    "sdp.flash": (_backends.cuda.flash_sdp_enabled, _backends.cuda.enable_flash_sdp),
    "sdp.mem_efficient": (
        _backends.cuda.mem_efficient_sdp_enabled,
        _backends.cuda.enable_mem_efficient_sdp,
    ),
    "sdp.math": (_backends.cuda.math_sdp_enabled, _backends.cuda.enable_math_sdp),
}
_OF_CUDA = {
    "current_device": (_cuda.current_device, _cuda.set_device),
    "current_stream": (_cuda.current_stream, _cuda.set_stream),
}


def settings() -> Settings:
    """Switches that change how fast, how exactly, or where torch computes."""
    readable = _OF_TORCH | (_OF_CUDA if torch.cuda.is_initialized() else {})
    return {name: read() for name, (read, _) in readable.items()}


def restore(before: Settings) -> str:
    """Set what is no longer as it was; what that is, in words, or ''."""
    found, now = [], settings()
    for name, value in before.items():
        if now[name] != value:
            found.append(f"{name} from {value} to {now[name]}")
            (_OF_TORCH | _OF_CUDA)[name][1](value)
    return "; ".join(found)


def forget_earlier_cases() -> None:
    """Drop what is left of them: inputs and graphs that a failure's traceback holds, and what
    torch.compile keeps.

    Of one function torch compiles a few shapes (8, by default) and silently runs all later ones
    uncompiled: a FlexAttention that should take 0.01 ms then takes 3 ms, and its rival wins.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:  # importing it takes seconds, and nobody has compiled anything
        dynamo.reset()
    gc.collect()


@contextmanager
def no_garbage() -> Iterator[None]:
    """Nothing is collected while a CUDA graph is captured: a graph that dies meanwhile, whosever
    it was, would end the capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
