"""PyTorch's own attention for a decode step: each branch, the dense step, and all of NSA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import baseline
from nsabench.implementations.baselines.nsa_attention import LOCAL, block_scores
from nsabench.ops import DecodeSizes

# q [B,HQ,D], k [B,H,L,D], v [B,H,L,Dv], sm_scale -> [B,HQ,Dv]
Attention = Callable[..., Tensor]


def attend(q: Tensor, k: Tensor, v: Tensor, sm_scale: float, keep: Tensor | None = None) -> Tensor:
    """Attend with the heads of a group as queries of one head: q [B,HQ,D], k, v [B,H,L,...]."""
    b, hq, d = q.shape
    h = k.shape[1]
    grouped = q.reshape(b, h, hq // h, d)
    out = scaled_dot_product_attention(grouped, k, v, attn_mask=keep, scale=sm_scale)
    return out.reshape(b, hq, -1)


def attend_grouped(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """Attend with one query for each head; SDPA can then split the keys over programs."""
    shared = _torch.share_heads(q.shape[1] != k.shape[1])
    return scaled_dot_product_attention(q.unsqueeze(2), k, v, scale=sm_scale, **shared).squeeze(2)


def _newest(k: Tensor, v: Tensor, window: int) -> tuple[Tensor, Tensor]:
    near = slice(max(k.shape[2] - window, 0), None)
    return k[:, :, near], v[:, :, near]


def whole_cache(name: str, **declared: Any) -> Callable[[Attention], Attention]:
    """Register attention to a whole cache for three decode ops, and as NSA's alternative."""

    def register(attention: Attention) -> Attention:
        def window(q: Tensor, k: Tensor, v: Tensor, *, window: int, sm_scale: float) -> Tensor:
            return attention(q, *_newest(k, v, window), sm_scale)

        for op in ("decode_compressed", "decode_dense"):
            baseline(op, name, **declared)(attention)
        baseline("decode_window", name, **declared)(window)
        other = {"role": "alternative", "computes": "decode_dense", **declared}
        baseline("decode_step", f"dense_{name}", **other)(attention)
        return attention

    return register


whole_cache("sdpa_heads_as_queries", on_cpu=True)(attend)
whole_cache("sdpa_gqa", on_cpu=True)(attend_grouped)


@whole_cache("flash")
def flash(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    longest = (1, keys.shape[1])
    out = _torch.aten_flash(q.unsqueeze(1), keys, values, None, longest, sm_scale, causal=False)
    return out.squeeze(1)


@baseline("decode_selected", "gathered_sdpa", on_cpu=True, kind="general")
def gathered_sdpa(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, **options: Any) -> Tensor:
    block_size = options["block_size"]
    most = -(-k.shape[2] // block_size)
    if most < ranges.shape[2]:
        first = (ranges[..., 0] >= ranges[..., 1]).int().argsort(dim=-1, stable=True)[..., :most]
        ranges = ranges.gather(2, first.unsqueeze(-1).expand(-1, -1, -1, 2))
    token = ranges[..., :1].long() + torch.arange(block_size, device=q.device)
    keep = (token < ranges[..., 1:]).flatten(2)
    index = token.flatten(2).clamp_(max=k.shape[2] - 1).unsqueeze(-1)
    keys, values = (x.gather(2, index.expand(-1, -1, -1, x.shape[3])) for x in (k, v))
    return attend(q, keys, values, options["sm_scale"], keep.unsqueeze(2))


def selected_ranges(
    q: Tensor, k_cmp: Tensor, tokens: int, sizes: DecodeSizes, sm_scale: float
) -> Tensor:
    """Return the first, the last LOCAL and the best scored blocks as ranges int32 [B,H,n,2]."""
    b, hq, d = q.shape
    h = k_cmp.shape[1]
    logits = (q.view(b, h, hq // h, d) @ k_cmp.mT).float() * sm_scale
    weights = torch.softmax(logits, -1).sum(2)
    blocks = -(-tokens // sizes.block_size)
    scores = block_scores(weights, blocks, sizes.block, sizes.stride, sizes.block_size)
    scores[..., 0] = float("inf")
    scores[..., max(blocks - LOCAL, 0) :] = float("inf")
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
    start = order[..., : sizes.n_selected] * sizes.block_size
    return torch.stack([start, (start + sizes.block_size).clamp_(max=tokens)], -1).to(torch.int32)


@baseline("decode_step", "torch_step", on_cpu=True, kind="general")
def torch_step(*tensors: Tensor, sizes: DecodeSizes, sm_scale: float) -> Tensor:
    q, k, v, k_cmp, v_cmp, gates = tensors
    ranges = selected_ranges(q, k_cmp, k.shape[2], sizes, sm_scale)
    whole = attend_grouped if _torch.SHARES_HEADS else attend
    selected = gathered_sdpa(q, k, v, ranges, block_size=sizes.block_size, sm_scale=sm_scale)
    return (
        gates[..., :1] * whole(q, k_cmp, v_cmp, sm_scale)
        + gates[..., 1:2] * selected
        + gates[..., 2:] * whole(q, *_newest(k, v, sizes.window), sm_scale)
    )
