"""FlexAttention as all baselines use it: compiled once, and absent from old versions of torch."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import torch

from nsabench import Unsupported


@cache
def flex() -> tuple[Any, ModuleType]:
    """`flex_attention`, compiled, and the module it is in. `Unsupported` before torch 2.5."""
    try:
        from torch.nn.attention import flex_attention as module
    except ImportError as error:
        raise Unsupported(f"torch {torch.__version__} has no flex_attention") from error
    return torch.compile(module.flex_attention, dynamic=False), module
