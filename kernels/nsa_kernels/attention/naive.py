"""NSA attention in plain PyTorch, branch by branch.

``naive_nsa`` computes equation 5 of arXiv 2502.11089 with naive functions of the branches.
"""

from __future__ import annotations

import torch

from ..band.naive import naive_compressed, naive_sliding_window
from ..scoring.naive import naive_block_scores, naive_select_blocks
from ..selection.blocks.naive import naive_blocks


def naive_nsa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    *,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
) -> torch.Tensor:
    """Attend with q [B,T,HQ,D] to k, v [B,T,H,...], k_cmp, v_cmp [B,Nc,H,...]; gates [B,T,HQ,3].

    Returns [B,T,HQ,Dv] in q's dtype. The result is differentiable, except in the choice of blocks.
    """
    overlap = {"block": block, "stride": stride}
    compressed, _ = naive_compressed(q, k_cmp, v_cmp, **overlap)
    scores = naive_block_scores(q.detach(), k_cmp.detach(), block_size=block_size, **overlap)
    blocks = naive_select_blocks(scores, n_selected, block_size=block_size)
    selected, _ = naive_blocks(q, k, v, blocks, block_size, q.shape[3] ** -0.5)
    near, _ = naive_sliding_window(q, k, v, window=window)
    branches = torch.stack([compressed, selected, near], -2)
    return (gates.unsqueeze(-1) * branches).sum(-2)
