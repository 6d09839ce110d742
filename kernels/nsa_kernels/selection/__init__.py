"""The selection branch: attention over the keys that a query has chosen, in four layouts.

``selection.cuda`` has two of the layouts, rows and ranges, in CUDA C++. It is not imported here.
"""

from __future__ import annotations

from .blocks.api import block_selection_attention, plan_blocks
from .blocks.plan import BlockPlan
from .config import chosen_config
from .ranges.api import selection_ranges
from .rows.api import selection_rows, selection_rows_per_head
from .varlen.api import selection_varlen

__all__ = [
    "BlockPlan",
    "block_selection_attention",
    "chosen_config",
    "plan_blocks",
    "selection_ranges",
    "selection_rows",
    "selection_rows_per_head",
    "selection_varlen",
]
