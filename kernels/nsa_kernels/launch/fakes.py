"""Make empty results of operators, for tracing without data."""

from __future__ import annotations

from typing import Any

import torch


def gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return dq, dk, dv of a backward: contiguous, with the shapes of q, k and v."""
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def rows_results(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out [..., Dv] and lse [...] for q [..., D]."""
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    return q.new_empty((*q.shape[:-1], v.shape[-1])), lse


def result_like_q(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> torch.Tensor:
    """Return out [..., Dv] for q [..., D]."""
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def band_results(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out [B,T,HQ,Dv] and lse [B,HQ,T] of attention under a band."""
    b, t, hq, _ = q.shape
    return q.new_empty((b, t, hq, v.shape[3])), q.new_empty((b, hq, t), dtype=torch.float32)
