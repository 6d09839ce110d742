"""``selection_ranges`` row by row, in plain torch: equation 2 of arXiv 2502.11089. The keys are
those of equation 12, the union of a row's spans."""

from __future__ import annotations

import itertools

import torch

from ..rows.naive import naive_rows


def naive_ranges(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    *,
    sm_scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute ``selection_ranges`` of q [B, S, G, h, D], k, v [B, G, S_kv, ...] and ranges.

    Returns:
        out [B, S, G, h, Dv] and lse [B, S, G, h] in q's dtype, as ``naive_rows``.
    """
    position = torch.arange(k.shape[2], device=k.device)
    rows = [naive_rows(q.flatten(0, 2)[:0], k.flatten(0, 1)[:0], v.flatten(0, 1)[:0])]
    for b, s, g in itertools.product(*map(range, q.shape[:3])):
        start, end = ranges[b, s, g].unsqueeze(-1).unbind(1)
        chosen = ((start <= position) & (position < end)).any(0)
        keys, values = k[b, g, chosen], v[b, g, chosen]
        rows.append(naive_rows(q[b, s, g, None], keys[None], values[None], sm_scale=sm_scale))
    out, lse = (torch.cat(x) for x in zip(*rows, strict=True))
    return out.view(*q.shape[:4], v.shape[3]), lse.view(q.shape[:4])
