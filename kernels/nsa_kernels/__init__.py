"""Triton kernels for Native Sparse Attention (arXiv 2502.11089)."""

from __future__ import annotations

from ._select_blocks import select_blocks
from .block_attention import block_selection_attention, plan_blocks
from .block_plan import BlockPlan
from .compressed import compressed_attention, compressed_attention_with_scores
from .config import Config, chosen_config
from .decode import (
    decode_compressed,
    decode_scores,
    decode_selected,
    decode_step,
    decode_window,
    gated_sum,
)
from .gate import selection_attention
from .layer import NSAttention
from .layer_cache import NSACache
from .policy import REASONS, Policy, default_policy
from .ranges import selection_ranges
from .routing import reset_routing_report, routing_report
from .rows import selection_rows, selection_rows_per_head
from .sdpa import packed_sdpa
from .sliding import sliding_window
from .varlen import selection_varlen

__all__ = [
    "REASONS",
    "BlockPlan",
    "Config",
    "NSACache",
    "NSAttention",
    "Policy",
    "block_selection_attention",
    "chosen_config",
    "compressed_attention",
    "compressed_attention_with_scores",
    "decode_compressed",
    "decode_scores",
    "decode_selected",
    "decode_step",
    "decode_window",
    "default_policy",
    "gated_sum",
    "packed_sdpa",
    "plan_blocks",
    "reset_routing_report",
    "routing_report",
    "select_blocks",
    "selection_attention",
    "selection_ranges",
    "selection_rows",
    "selection_rows_per_head",
    "selection_varlen",
    "sliding_window",
]

__version__ = "0.1.0"
