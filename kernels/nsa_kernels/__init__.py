"""Triton kernels for Native Sparse Attention (arXiv 2502.11089)."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("triton") is None:
    # A torch for the CPU does not bring Triton.
    raise ImportError("nsa_kernels needs Triton, which is not installed: run `pip install triton`")

from .attention import (
    NSACache,
    NSAttention,
    decode_compressed,
    decode_scores,
    decode_selected,
    decode_step,
    decode_window,
    gated_sum,
    nsa_attention,
)
from .band import compressed_attention, sliding_window
from .gate import (
    REASONS,
    Policy,
    default_policy,
    packed_sdpa,
    reset_routing_report,
    routing_report,
    selection_attention,
)
from .launch.config import Config
from .scoring import compressed_attention_with_scores, select_blocks
from .selection import (
    BlockPlan,
    block_selection_attention,
    chosen_config,
    plan_blocks,
    selection_ranges,
    selection_rows,
    selection_rows_per_head,
    selection_varlen,
)

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
    "nsa_attention",
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

__version__ = "0.2.0"
