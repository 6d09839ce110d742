"""Score blocks of keys, and select the n best."""

from __future__ import annotations

from .block_scores import compressed_attention_with_scores
from .top_n import select_blocks

__all__ = ["compressed_attention_with_scores", "select_blocks"]
