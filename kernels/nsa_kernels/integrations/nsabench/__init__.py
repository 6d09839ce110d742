"""The library's kernels as nsabench candidates: one module an op family, all registered here.

The entry point of ``nsabench.implementations`` names this package; nothing else imports nsabench.
"""

from __future__ import annotations

# In the order in which runs and their tables have them.
# isort: off
from . import rows, varlen, ranges, cuda, blocks, band, decode, whole
# isort: on

__all__ = ["band", "blocks", "cuda", "decode", "ranges", "rows", "varlen", "whole"]
