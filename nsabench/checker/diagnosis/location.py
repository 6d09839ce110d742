"""Where in an output something is, in words."""

from __future__ import annotations

import torch
from torch import Tensor

EVERYWHERE = "every part of it"
ROUNDING, SMALL = 4.0, 64.0


def locate(marked: Tensor) -> str:
    """Return the extent of the marked elements along each axis, as "axis 0 (of 100): 64 to 99"."""
    parts = []
    for axis, size in enumerate(marked.shape):
        others = [other for other in range(marked.dim()) if other != axis]
        marks = torch.nonzero(marked.sum(others) if others else marked).flatten().tolist()
        if marks and len(marks) < size:
            span = f"index {marks[0]}" if len(marks) == 1 else f"{marks[0]} to {marks[-1]}"
            gaps = "" if len(marks) == marks[-1] - marks[0] + 1 else f" ({len(marks)} of them)"
            parts.append(f"axis {axis} (of {size}): {span}{gaps}")
    return ", ".join(parts) or EVERYWHERE


def within(errors: Tensor, left: float) -> str:
    """Return where a mistake shows, as " in axis 0 (of 100): 64 to 99", or "" if everywhere.

    errors: of each vector. left: the error that the explanation leaves; a few times that is
    rounding.
    """
    where = locate(errors > max(ROUNDING * left, float(errors.max()) / SMALL))
    return "" if where == EVERYWHERE else f" in {where}"


def is_all(errors: Tensor, marked: Tensor) -> bool:
    """Return whether only the marked elements are off."""
    rest = errors.masked_fill(marked, 0.0).mean(-1)
    return float(rest.max()) <= float(errors.mean(-1).max()) / SMALL
