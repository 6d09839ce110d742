"""The row and range kernels in CUDA C++, compiled when first called.

docs/explanation/kernels/cuda.md says how they work. The kernels need ``nsa-kernels[cuda]``. A call
that they cannot serve raises ``Unsupported``, and does not fall back to another kernel.
"""

from __future__ import annotations

from .api import (
    Plan,
    Tile,
    plan_ranges,
    plan_rows,
    selection_ranges,
    selection_rows,
    variants,
)
from .nvrtc import Unsupported, Variant, check_capability, compiler, cubin

__all__ = [
    "Plan",
    "Tile",
    "Unsupported",
    "Variant",
    "check_capability",
    "compiler",
    "cubin",
    "plan_ranges",
    "plan_rows",
    "selection_ranges",
    "selection_rows",
    "variants",
]
