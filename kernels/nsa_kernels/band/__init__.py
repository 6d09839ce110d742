"""Attention under a band (``geometry.Band``): the sliding window and the compressed keys."""

from __future__ import annotations

from .api import compressed_attention, sliding_window

__all__ = ["compressed_attention", "sliding_window"]
