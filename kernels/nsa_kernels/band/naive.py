"""The window and compression branches as the paper defines them (arXiv 2502.11089).

Both branches compute equation 2. The window branch uses the last ``window`` keys (section 3.3.3).
The compression branch uses the compressed keys whose tokens are all at or before the query
(equation 7).
"""

from __future__ import annotations

import torch


def naive_sliding_window(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    window: int,
    sm_scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with query t to keys t - window + 1 to t. q [B, T, HQ, D], k, v [B, T, H, D or Dv].

    Returns:
        out [B, T, HQ, Dv] and lse [B, T, HQ] in q's dtype. Both are differentiable.
    """
    t = torch.arange(q.shape[1], device=q.device)
    age = t[:, None] - t
    return attend(q, k, v, (age >= 0) & (age < window), sm_scale)


def naive_compressed(
    q: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    *,
    block: int = 32,
    stride: int = 16,
    sm_scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute ``compressed_attention`` of q [B, T, HQ, D], k_cmp, v_cmp [B, Nc, H, D or Dv].

    Returns:
        out [B, T, HQ, Dv] and lse [B, T, HQ] in q's dtype; 0 and -inf if no key is seen.
    """
    return attend(q, k_cmp, v_cmp, complete(q.shape[1], k_cmp, block, stride), sm_scale)


def complete(tokens: int, k_cmp: torch.Tensor, block: int, stride: int) -> torch.Tensor:
    """Return bool [T, Nc]: whether the last token of a key is at or before a query (equation 7)."""
    last = torch.arange(k_cmp.shape[1], device=k_cmp.device) * stride + block - 1
    return last <= torch.arange(tokens, device=k_cmp.device)[:, None]


def weights(
    q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor, sm_scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights [B, HQ, T, N], 0 for keys that are not ``seen`` [T, N], and lse [B, T, HQ]."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    of_heads = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    logits = torch.einsum("bthd,bnhd->bhtn", q, of_heads) * scale
    logits = logits.masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(logits, -1)
    p = torch.exp(logits - lse.masked_fill(lse.isinf(), 0.0).unsqueeze(-1))
    return p, lse.transpose(1, 2)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seen: torch.Tensor,
    sm_scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute equation 2 with grouped heads, over the keys that ``seen`` [T, N] gives each
    query."""
    p, lse = weights(q, k, seen, sm_scale)
    return torch.einsum("bhtn,bnhv->bthv", p, v.repeat_interleave(q.shape[2] // v.shape[2], 2)), lse
