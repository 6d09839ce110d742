"""Triton kernels for the selection branch of Native Sparse Attention (arXiv 2502.11089)."""

from __future__ import annotations

from .block_attention import block_selection_attention, plan_blocks
from .block_plan import BlockPlan
from .config import Config, chosen_config
from .gate import selection_attention
from .policy import REASONS, Policy, default_policy
from .ranges import selection_ranges
from .routing import reset_routing_report, routing_report
from .rows import selection_rows, selection_rows_per_head
from .sdpa import packed_sdpa
from .varlen import selection_varlen

__all__ = [
    "REASONS",
    "BlockPlan",
    "Config",
    "Policy",
    "block_selection_attention",
    "chosen_config",
    "default_policy",
    "packed_sdpa",
    "plan_blocks",
    "reset_routing_report",
    "routing_report",
    "selection_attention",
    "selection_ranges",
    "selection_rows",
    "selection_rows_per_head",
    "selection_varlen",
]

__version__ = "0.1.0"
