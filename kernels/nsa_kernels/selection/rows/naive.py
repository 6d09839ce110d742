"""``selection_rows`` as the paper defines it: equation 2 of arXiv 2502.11089 on chosen keys."""

from __future__ import annotations

import torch


def naive_rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with q [N, H, D] to k [N, L, D], v [N, L, Dv], in any floating dtype.

    Returns:
        out [N, H, Dv], the mean of the values weighted by exp(scale q.k), and lse [N, H], the
        logarithm of the weights' sum; 0 and -inf if L = 0. Both are differentiable.
    """
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    logits = torch.einsum("nhd,nld->nhl", q, k) * scale
    return torch.einsum("nhl,nlv->nhv", torch.softmax(logits, -1), v), torch.logsumexp(logits, -1)
