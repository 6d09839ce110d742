"""NSA attention with all its branches, a layer with its cache, and a decode step."""

from __future__ import annotations

from .cache import NSACache
from .decode.api import decode_step
from .decode.branches import (
    decode_compressed,
    decode_scores,
    decode_selected,
    decode_window,
    gated_sum,
)
from .layer import NSAttention
from .whole import nsa_attention

__all__ = [
    "NSACache",
    "NSAttention",
    "decode_compressed",
    "decode_scores",
    "decode_selected",
    "decode_step",
    "decode_window",
    "gated_sum",
    "nsa_attention",
]
