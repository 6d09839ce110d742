"""``selection_varlen`` row by row: equation 2 of arXiv 2502.11089."""

from __future__ import annotations

import itertools

import torch

from ..rows.naive import naive_rows


def naive_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    *,
    sm_scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with row n of q [N, H, D] to the keys cu_seqlens[n] to cu_seqlens[n + 1] - 1.

    Returns:
        out [N, H, Dv] and lse [N, H] in q's dtype, as ``naive_rows``. The host reads cu_seqlens.
    """
    none = naive_rows(q[:0], k[None][:0], v[None][:0], sm_scale=sm_scale)
    rows = [none] + [
        naive_rows(q[n : n + 1], k[None, first:end], v[None, first:end], sm_scale=sm_scale)
        for n, (first, end) in enumerate(itertools.pairwise(cu_seqlens.tolist()))
    ]
    return torch.cat([out for out, _ in rows]), torch.cat([lse for _, lse in rows])
