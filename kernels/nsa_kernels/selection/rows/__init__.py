"""One span a row, all of one length: ``selection_rows``."""

from __future__ import annotations

from .api import selection_rows, selection_rows_per_head

__all__ = ["selection_rows", "selection_rows_per_head"]
