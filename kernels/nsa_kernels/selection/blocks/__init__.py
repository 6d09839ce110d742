"""Chosen blocks of keys for every query of a sequence: ``block_selection_attention``."""

from __future__ import annotations

from .api import block_selection_attention, plan_blocks
from .plan import BlockPlan

__all__ = ["BlockPlan", "block_selection_attention", "plan_blocks"]
