"""``selection_varlen``: one span of keys per row, of any length, packed."""

from __future__ import annotations

from .api import selection_varlen

__all__ = ["selection_varlen"]
