"""Triton kernels for Native Sparse Attention (arXiv 2502.11089)."""

from __future__ import annotations

from .attention.cache import NSACache
from .attention.decode.api import (
    decode_compressed,
    decode_scores,
    decode_selected,
    decode_step,
    decode_window,
    gated_sum,
)
from .attention.layer import NSAttention
from .band.compressed import compressed_attention, compressed_attention_with_scores
from .band.sliding import sliding_window
from .gate.api import selection_attention
from .gate.policy import REASONS, Policy, default_policy
from .gate.routing import reset_routing_report, routing_report
from .gate.sdpa import packed_sdpa
from .scoring.top_n import select_blocks
from .selection.blocks.api import block_selection_attention, plan_blocks
from .selection.blocks.plan import BlockPlan
from .selection.config import Config, chosen_config
from .selection.ranges.api import selection_ranges
from .selection.rows.api import selection_rows, selection_rows_per_head
from .selection.varlen.api import selection_varlen

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
