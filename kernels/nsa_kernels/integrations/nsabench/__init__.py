"""Register the kernels as nsabench candidates, one module for each family of ops.

The entry point of ``nsabench.implementations`` names this package. Nothing else imports nsabench.
"""

from __future__ import annotations

# The order of these imports is the order in runs and tables.
# isort: off
from . import rows, varlen, ranges, cuda, blocks, band, decode, whole
# isort: on

__all__ = ["band", "blocks", "cuda", "decode", "ranges", "rows", "varlen", "whole"]
