"""Arguments for the backward of a branch of a gated sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Gated:
    """Data of the sum that replace the gradient and the output of the branch, row by row.

    - ``gate`` float32, the factor of the branch, in the layout of the branch's LSE;
    - ``rest`` float32, likewise, the gate's gradient: the sum over Dv of output times gradient;
    - ``dq``, contiguous, to which this branch's dq is added; None: this branch is the first.
    """

    gate: torch.Tensor
    rest: torch.Tensor
    dq: torch.Tensor | None
