"""Block scores and selection as the paper defines them (arXiv 2502.11089, section 3.3.2)."""

from __future__ import annotations

import torch

from ..band.naive import complete, weights
from .top_n import LOCAL_BLOCKS


def naive_block_scores(
    q: torch.Tensor,
    k_cmp: torch.Tensor,
    *,
    block: int = 32,
    stride: int = 16,
    block_size: int = 64,
    sm_scale: float | None = None,
) -> torch.Tensor:
    """Return scores [B, T, H, ceil(T / block_size)] of q [B, T, HQ, D] and k_cmp [B, Nc, H, D].

    Equation 8 gives the weights of compressed attention, which equation 10 sums over the heads of a
    group. Block j has ``block_size / stride`` strides m, and ``block / stride`` keys n cover each
    stride. By equation 9, the score of block j is the sum, over all m and n, of the weight of key
    ``(block_size / stride) * j + m - n``. All are counted from 0.
    """
    tokens, groups = q.shape[1], k_cmp.shape[2]
    p, _ = weights(q, k_cmp, complete(tokens, k_cmp, block, stride), sm_scale)
    p = p.unflatten(1, (groups, -1)).sum(2).transpose(1, 2)
    span = block_size // stride
    scores = p.new_zeros((*p.shape[:3], -(-tokens // block_size)))
    for j in range(scores.shape[3]):
        for m in range(span):
            for n in range(block // stride):
                key = span * j + m - n
                if 0 <= key < p.shape[3]:
                    scores[..., j] += p[..., key]
    return scores


def naive_select_blocks(
    scores: torch.Tensor,
    count: int,
    *,
    block_size: int = 64,
    first_position: int = 0,
    local: int = LOCAL_BLOCKS,
) -> torch.Tensor:
    """Return the blocks of the ``count`` highest ``scores`` [B, T, H, n_blocks] (equation 11).

    The first block and the last ``local`` ones up to the query come first, whatever their scores.
    Among equal scores, the lowest index is chosen. Negative scores and NaN count as 0.

    Returns:
        int64 [B, T, H, min(count, n_blocks)]: blocks in the order of choice, then -1.
    """
    position = first_position + torch.arange(scores.shape[1], device=scores.device)
    own = (position // block_size)[:, None, None]
    block = torch.arange(scores.shape[3], device=scores.device)
    forced = (block == 0) | (block > own - local)
    # Sort by score, then stably by rank: 0 for forced blocks, 2 for blocks that begin after the
    # query, 1 for all others.
    weight = torch.where((scores > 0) & ~forced, scores, 0)
    order = weight.argsort(dim=-1, descending=True, stable=True)
    rank = torch.where(block > own, 2, torch.where(forced, 0, 1)).expand(scores.shape)
    ranks, place = rank.gather(-1, order).sort(dim=-1, stable=True)
    return torch.where(ranks < 2, order.gather(-1, place), -1)[..., :count]
