"""``selection_ranges``: several spans of keys per row, read in place, with a backward."""

from __future__ import annotations

from .api import selection_ranges

__all__ = ["selection_ranges"]
