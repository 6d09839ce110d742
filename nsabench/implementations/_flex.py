"""FlexAttention as all baselines use it: compiled once, and absent from old versions of torch."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported


@cache
def flex() -> tuple[Any, ModuleType]:
    """`flex_attention`, compiled, and the module it is in. `Unsupported` before torch 2.5."""
    try:
        from torch.nn.attention import flex_attention as module
    except ImportError as error:
        raise Unsupported(f"torch {torch.__version__} has no flex_attention") from error
    # fullgraph: what cannot be compiled fails, and is not measured uncompiled under this name.
    return torch.compile(module.flex_attention, dynamic=False, fullgraph=True), module


def check_head_dims(q: Tensor, v: Tensor) -> None:
    """Raises `Unsupported` for head dims that FlexAttention does not take."""
    if any(width & (width - 1) for width in (q.shape[-1], v.shape[-1])):
        raise Unsupported("flex_attention needs head dims that are powers of two")
