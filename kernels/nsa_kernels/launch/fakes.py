"""What operators return, for tracing without data: shapes that several of them share."""

from __future__ import annotations

from typing import Any

import torch


def gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk, dv of any backward: contiguous, shaped like q, k and v."""
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def rows_results(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [..., Dv] and lse [...] of q [..., D]."""
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    return q.new_empty((*q.shape[:-1], v.shape[-1])), lse


def band_results(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B,T,HQ,Dv] and lse [B,HQ,T] of attention under a band."""
    b, t, hq, _ = q.shape
    return q.new_empty((b, t, hq, v.shape[3])), q.new_empty((b, hq, t), dtype=torch.float32)
