"""Block selection in plain torch, for tests and float64: equation 2 of arXiv 2502.11089, with a
mask for the keys of equation 12."""

from __future__ import annotations

import torch


def naive_blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_indices: torch.Tensor,
    block_size: int,
    sm_scale: float,
    cu_seqlens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out [B, T, HQ, Dv] and lse [B, T, HQ], like ``block_selection_attention``.

    Memory grows with T * T. ``out`` is differentiable in any floating dtype, ``lse`` is not.
    """
    length, heads = k.shape[1:3]
    group = q.shape[2] // heads
    position = torch.arange(length, device=q.device)
    if cu_seqlens is None:
        begin, inside = torch.zeros_like(position), torch.ones_like(position, dtype=torch.bool)
        sequence = begin
    else:
        cu = cu_seqlens.long()
        sequence = torch.searchsorted(cu, position, right=True) - 1
        inside = (sequence >= 0) & (position < cu[-1])
        begin = cu[sequence.clamp(0, cu.numel() - 2)]
    block_of_key = (position - begin) // block_size
    chosen = block_indices.long().unsqueeze(-1) == block_of_key
    seen = chosen.any(3) & (position <= position[:, None]).view(1, length, 1, length)
    same = (sequence == sequence[:, None]) & inside & inside[:, None]
    seen = (seen & same.view(1, length, 1, length)).movedim(2, 1).repeat_interleave(group, 1)
    keys = k.movedim(2, 1).repeat_interleave(group, 1)
    values = v.movedim(2, 1).repeat_interleave(group, 1)
    scores = (q.movedim(2, 1) @ keys.mT) * sm_scale
    scores = scores.masked_fill(~seen, float("-inf"))
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.masked_fill(lse.isinf(), 0.0).unsqueeze(-1))
    out = (weights @ values).movedim(1, 2)
    return out, lse.detach().movedim(1, 2)
