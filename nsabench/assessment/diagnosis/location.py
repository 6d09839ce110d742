"""Where in an output something is, in words."""

from __future__ import annotations

import torch
from torch import Tensor


def locate(marked: Tensor) -> str:
    """The extent of the marked elements along each axis, "axis 0 (of 100): 64 to 99" and so on."""
    parts = []
    for axis, size in enumerate(marked.shape):
        others = [other for other in range(marked.dim()) if other != axis]
        at = torch.nonzero(marked.sum(others) if others else marked).flatten().tolist()
        if at and len(at) < size:
            span = f"index {at[0]}" if len(at) == 1 else f"{at[0]} to {at[-1]}"
            gaps = "" if len(at) == at[-1] - at[0] + 1 else f" ({len(at)} of them)"
            parts.append(f"axis {axis} (of {size}): {span}{gaps}")
    return ", ".join(parts) or "every part of it"
