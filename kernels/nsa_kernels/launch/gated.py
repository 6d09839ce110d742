"""Arguments for the backward of a branch of a gated sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Gated:
    """What the backward of a branch needs from a gated sum, besides the sum's gradient.

    - ``gate`` float32: the factor of the branch, in the layout of the branch's LSE;
    - ``rest`` float32: the gate's gradient in this layout, the sum over Dv of output times
    gradient;
    - ``dq``, contiguous: this branch adds its dq to it. None: this branch is the first.
    """

    gate: torch.Tensor
    rest: torch.Tensor
    dq: torch.Tensor | None
