"""One token a sequence against its cache: what the branches of a decode step share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nsabench.assessment.diagnosis.coordinates import coordinates
from nsabench.assessment.diagnosis.selected import Selection
from nsabench.ops import Inputs


def lead(inputs: Inputs) -> tuple[int, ...]:
    return tuple(inputs.tensors["k"].shape[:2])


def select(
    inputs: Inputs, rows: Tensor, chosen: Callable[[Tensor, Tensor], list[Tensor]]
) -> Selection:
    """chosen: the keys of each row, by batch and head."""
    t = inputs.tensors
    b, h = coordinates(rows, lead(inputs))
    return Selection(
        q=t["q"].unflatten(1, (t["k"].shape[1], -1))[b, h],
        k=t["k"],
        v=t["v"],
        batch=b,
        head=h,
        chosen=chosen(b, h),
        sm_scale=inputs.options["sm_scale"],
    )


def all_keys(inputs: Inputs, rows: Tensor) -> Selection:
    """Rows that attend to all of their cache."""
    keys = torch.arange(inputs.tensors["k"].shape[2], device=rows.device)
    return select(inputs, rows, lambda b, h: [keys] * len(b))
