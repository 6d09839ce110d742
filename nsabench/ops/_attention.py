"""Attention in float64, forward and backward, for oracles that work in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def weights(q: Tensor, k: Tensor, scale: float, keep: Tensor) -> Tensor:
    """Softmax weights of float64 queries [..., H, D] on keys [..., L, D].

    keep: bool, broadcast to [..., H, L]; a query that keeps no key has all its weights zero.
    """
    import torch

    scores = (q @ k.mT).mul_(scale).masked_fill_(~keep, float("-inf"))
    return torch.softmax(scores, -1).nan_to_num_(0.0)


def gradients(
    p: Tensor, q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv of `p @ v` with p = weights(q, k, scale, ...), everything float64.

    dv = p^T do; ds = p (do v^T - rowsum(p (do v^T))); dq = scale ds k; dk = scale ds^T q
    (FlashAttention, arXiv 2205.14135, appendix B.2).
    """
    dp = grad_out @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
    return ds @ k, ds.mT @ q, p.mT @ grad_out
