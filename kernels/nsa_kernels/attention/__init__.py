"""The whole of NSA: a layer with its cache, a decode step, and the paper's formulas."""

from __future__ import annotations

from .cache import NSACache
from .decode import (
    decode_compressed,
    decode_scores,
    decode_selected,
    decode_step,
    decode_window,
    gated_sum,
)
from .layer import NSAttention

__all__ = [
    "NSACache",
    "NSAttention",
    "decode_compressed",
    "decode_scores",
    "decode_selected",
    "decode_step",
    "decode_window",
    "gated_sum",
]
