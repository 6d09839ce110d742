"""Rows that see the keys lo up to hi: what sliding_window and compressed share."""

from __future__ import annotations

from torch import Tensor

from nsabench.assessment.diagnosis.coordinates import coordinates
from nsabench.assessment.diagnosis.selected import Selection, spans
from nsabench.ops import Inputs


def lead(inputs: Inputs) -> tuple[int, ...]:
    q, k = inputs.tensors["q"], inputs.tensors["k"]
    return (*q.shape[:2], k.shape[2])


def select(inputs: Inputs, rows: Tensor, lo: Tensor, hi: Tensor) -> Selection:
    """lo, hi: int64 [R]."""
    t = inputs.tensors
    b, token, h = coordinates(rows, lead(inputs))
    return Selection(
        q=t["q"].unflatten(2, (t["k"].shape[2], -1))[b, token, h],
        k=t["k"].transpose(1, 2),
        v=t["v"].transpose(1, 2),
        batch=b,
        head=h,
        chosen=spans(lo, hi, t["k"].shape[1]),
        sm_scale=inputs.options["sm_scale"],
    )
