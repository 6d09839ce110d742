"""Decode one token with a cache: each branch alone, or all in one chain of launches."""

from __future__ import annotations

from .api import decode_step
from .branches import (
    decode_compressed,
    decode_scores,
    decode_selected,
    decode_window,
    gated_sum,
)

__all__ = [
    "decode_compressed",
    "decode_scores",
    "decode_selected",
    "decode_step",
    "decode_window",
    "gated_sum",
]
