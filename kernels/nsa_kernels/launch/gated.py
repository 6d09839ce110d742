"""What the backward of a branch takes when the branch is one of a gated sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Gated:
    """Instead of a branch's own gradient and its output: those of the sum, row by row.

    - ``gate`` float32, the factor of the branch, in the layout of the branch's LSE;
    - ``rest`` float32, likewise, the gate's gradient: the sum over Dv of output times gradient;
    - ``dq``, contiguous, to which this branch's dq is added; None: this branch is the first.
    """

    gate: torch.Tensor
    rest: torch.Tensor
    dq: torch.Tensor | None
