"""Several spans a row, read in place: ``selection_ranges``, with a backward."""

from __future__ import annotations

from .api import selection_ranges

__all__ = ["selection_ranges"]
