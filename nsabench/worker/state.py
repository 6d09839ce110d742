"""What one implementation could leave in the process, under the others' feet."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def settings() -> dict[str, object]:
    """Switches that change how fast, how exactly, or where torch computes."""
    found: dict[str, object] = {
        "num_threads": torch.get_num_threads(),
        "grad_enabled": torch.is_grad_enabled(),
        "default_dtype": torch.get_default_dtype(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "sdp.flash": torch.backends.cuda.flash_sdp_enabled(),
        "sdp.mem_efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "sdp.math": torch.backends.cuda.math_sdp_enabled(),
    }
    if torch.cuda.is_initialized():
        found["current_stream"] = torch.cuda.current_stream()
        found["current_device"] = torch.cuda.current_device()
    return found


def changed(before: dict[str, object], after: dict[str, object]) -> str:
    """What differs, in words, or ''."""
    return "; ".join(
        f"{name} from {before[name]} to {value}"
        for name, value in after.items()
        if name in before and before[name] != value
    )


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
