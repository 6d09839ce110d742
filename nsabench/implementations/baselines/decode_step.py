"""PyTorch's own way through a whole decode step of Native Sparse Attention."""

from __future__ import annotations

import torch
from torch import Tensor

from nsabench import implementation
from nsabench.implementations.baselines.decode_branches import (
    attend,
    attend_grouped,
    gathered,
    newest,
)
from nsabench.implementations.torch_attention.backends import SHARES_HEADS
from nsabench.ops import DecodeSizes

LOCAL = 2


def selected_ranges(
    q: Tensor,
    k_cmp: Tensor,
    tokens: int,
    sizes: DecodeSizes,
    sm_scale: float,
) -> Tensor:
    """int32 [B,H,n,2]: the first block, the local ones and those of the highest scores."""
    b, hq, d = q.shape
    h, n = k_cmp.shape[1:3]
    logits = (q.view(b, h, hq // h, d) @ k_cmp.mT).float() * sm_scale
    weights = torch.softmax(logits, -1).sum(2)
    blocks = -(-tokens // sizes.block_size)
    scores = weights.new_zeros(b, h, blocks + 1)
    key = torch.arange(n, device=q.device)
    for place in range(sizes.block // sizes.stride):
        # What reaches behind the last block falls into one that nobody asks for.
        touched = (key + place) * sizes.stride // sizes.block_size
        scores.index_add_(2, touched.clamp(max=blocks), weights)
    scores = scores[..., :blocks]
    scores[..., 0] = float("inf")
    scores[..., max(blocks - LOCAL, 0) :] = float("inf")
    chosen = torch.sort(scores, dim=-1, descending=True, stable=True).indices[
        ..., : sizes.n_selected
    ]
    start = chosen * sizes.block_size
    return torch.stack([start, (start + sizes.block_size).clamp_(max=tokens)], -1).to(torch.int32)


@implementation(
    op="decode_step", name="torch_step", role="baseline", devices=("cuda", "cpu"), kind="general"
)
def torch_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    gates: Tensor,
    *,
    sizes: DecodeSizes,
    sm_scale: float,
) -> Tensor:
    """SDPA on slices of the caches and on the gathered blocks."""
    ranges = selected_ranges(q, k_cmp, k.shape[2], sizes, sm_scale)
    whole = attend_grouped if SHARES_HEADS else attend
    return (
        gates[..., :1] * whole(q, k_cmp, v_cmp, sm_scale)
        + gates[..., 1:2] * gathered(q, k, v, ranges, sizes.block_size, sm_scale)
        + gates[..., 2:] * whole(q, *newest(k, v, sizes.window), sm_scale)
    )
