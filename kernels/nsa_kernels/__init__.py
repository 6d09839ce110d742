"""Triton kernels for the selection branch of Native Sparse Attention (arXiv 2502.11089)."""

from __future__ import annotations

from .config import Config
from .rows import selection_rows, selection_rows_per_head

__all__ = ["Config", "selection_rows", "selection_rows_per_head"]

__version__ = "0.1.0"
