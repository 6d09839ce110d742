"""One span a row, packed, of any lengths: ``selection_varlen``."""

from __future__ import annotations

from .api import selection_varlen

__all__ = ["selection_varlen"]
