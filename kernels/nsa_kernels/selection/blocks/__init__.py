"""``block_selection_attention``: each query attends to blocks of keys that it chose."""

from __future__ import annotations

from .api import block_selection_attention, plan_blocks
from .plan import BlockPlan

__all__ = ["BlockPlan", "block_selection_attention", "plan_blocks"]
