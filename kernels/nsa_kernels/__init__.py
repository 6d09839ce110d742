"""Triton kernels for the selection branch of Native Sparse Attention (arXiv 2502.11089)."""

from __future__ import annotations

from .config import Config
from .ranges import selection_ranges
from .rows import selection_rows, selection_rows_per_head
from .varlen import selection_varlen

__all__ = [
    "Config",
    "selection_ranges",
    "selection_rows",
    "selection_rows_per_head",
    "selection_varlen",
]

__version__ = "0.1.0"
