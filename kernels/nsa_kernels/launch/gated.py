"""Inputs that the backward of a branch takes if the branch is part of a gated sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Gated:
    """Inputs of the backward of one branch, besides the gradient of the gated sum.

    - ``gate``, float32: the branch's factor in the sum, in the layout of the branch's LSE.
    - ``rest``, float32, in the layout of ``gate``: the gradient of the gate. It is the sum over Dv
    of the branch's output times the gradient of the gated sum.
    - ``dq``, contiguous: the branch adds its own dq to this tensor. None for the first branch.
    """

    gate: torch.Tensor
    rest: torch.Tensor
    dq: torch.Tensor | None
