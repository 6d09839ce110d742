"""PyTorch's own ways through a decode step, and through the dense one that NSA replaces."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsabench import Unsupported, implementation
from nsabench.implementations.torch_attention import flash as _band
from nsabench.implementations.torch_attention.backends import SHARES_HEADS, sharing

LOCAL = 2


def attend(q: Tensor, k: Tensor, v: Tensor, sm_scale: float, keep: Tensor | None = None) -> Tensor:
    """The heads of a group as queries of one head: q [B,HQ,D], k, v [B,H,L,...]."""
    b, hq, d = q.shape
    h = k.shape[1]
    grouped = q.reshape(b, h, hq // h, d)
    out = scaled_dot_product_attention(grouped, k, v, attn_mask=keep, scale=sm_scale)
    return out.reshape(b, hq, -1)


def attend_grouped(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """One query a head, which kernels that know groups split over the keys."""
    shared = sharing(q.shape[1] != k.shape[1])
    return scaled_dot_product_attention(q.unsqueeze(2), k, v, scale=sm_scale, **shared).squeeze(2)


def gathered(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, size: int, sm_scale: float) -> Tensor:
    """Attention over the tokens of different blocks [B,H,n,2] of `size` (the last may be cut off,
    and some be empty), gathered side by side."""
    held = -(-k.shape[2] // size)  # blocks that hold a token, at most: others are left out
    if held < ranges.shape[2]:
        first = (ranges[..., 0] >= ranges[..., 1]).int().argsort(dim=-1, stable=True)[..., :held]
        ranges = ranges.gather(2, first.unsqueeze(-1).expand(-1, -1, -1, 2))
    at = ranges[..., :1].long() + torch.arange(size, device=q.device)
    keep = (at < ranges[..., 1:]).flatten(2)
    index = at.flatten(2).clamp_(max=k.shape[2] - 1).unsqueeze(-1)
    return attend(
        q,
        k.gather(2, index.expand(-1, -1, -1, k.shape[3])),
        v.gather(2, index.expand(-1, -1, -1, v.shape[3])),
        sm_scale,
        keep.unsqueeze(2),
    )


def selected_ranges(
    q: Tensor,
    k_cmp: Tensor,
    tokens: int,
    *,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    sm_scale: float,
) -> Tensor:
    """int32 [B,H,n,2]: the first block, the local ones and those of the highest scores."""
    b, hq, d = q.shape
    h, n = k_cmp.shape[1:3]
    logits = (q.view(b, h, hq // h, d) @ k_cmp.mT).float() * sm_scale
    weights = torch.softmax(logits, -1).sum(2)
    blocks = -(-tokens // block_size)
    scores = weights.new_zeros(b, h, blocks + 1)
    key = torch.arange(n, device=q.device)
    for place in range(block // stride):
        # What reaches behind the last block falls into one that nobody asks for.
        scores.index_add_(2, ((key + place) * stride // block_size).clamp(max=blocks), weights)
    scores = scores[..., :blocks]
    scores[..., 0] = float("inf")
    scores[..., max(blocks - LOCAL, 0) :] = float("inf")
    chosen = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :n_selected]
    start = chosen * block_size
    return torch.stack([start, (start + block_size).clamp_(max=tokens)], -1).to(torch.int32)


@implementation(op="decode", name="torch_step", role="baseline", devices=("cuda", "cpu"))
def torch_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    gates: Tensor,
    ranges: Tensor,
    *,
    branch: str,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float,
) -> Tensor:
    """SDPA on slices of the caches and on the gathered blocks; a branch alone with the heads of a
    group as queries."""
    if branch == "sel":
        return gathered(q, k, v, ranges, block_size, sm_scale)
    if branch != "total":
        return attend(q, *_cache_of(k, v, k_cmp, v_cmp, branch, window), sm_scale)
    ranges = selected_ranges(
        q,
        k_cmp,
        k.shape[2],
        block=block,
        stride=stride,
        block_size=block_size,
        n_selected=n_selected,
        sm_scale=sm_scale,
    )
    whole = attend_grouped if SHARES_HEADS else attend
    return (
        gates[..., :1] * whole(q, k_cmp, v_cmp, sm_scale)
        + gates[..., 1:2] * gathered(q, k, v, ranges, block_size, sm_scale)
        + gates[..., 2:] * whole(q, *_cache_of(k, v, k_cmp, v_cmp, "win", window), sm_scale)
    )


def _cache_of(
    k: Tensor, v: Tensor, k_cmp: Tensor, v_cmp: Tensor, branch: str, window: int
) -> tuple[Tensor, Tensor]:
    """The stretch of a cache that a branch attends to as a whole."""
    if branch == "cmp":
        return k_cmp, v_cmp
    if branch == "dense":
        return k, v
    if branch == "win":
        near = slice(max(k.shape[2] - window, 0), None)
        return k[:, :, near], v[:, :, near]
    raise Unsupported(f"branch {branch} is not attention over one stretch of a cache")


@implementation(op="decode", name="sdpa_gqa", role="baseline", devices=("cuda", "cpu"))
def sdpa_gqa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    gates: Tensor,
    ranges: Tensor,
    *,
    branch: str,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float,
) -> Tensor:
    """SDPA of one query a head, which knows groups."""
    k, v = _cache_of(k, v, k_cmp, v_cmp, branch, window)
    return attend_grouped(q, k, v, sm_scale)


@implementation(op="decode", name="flash", role="baseline", devices=("cuda",))
def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    gates: Tensor,
    ranges: Tensor,
    *,
    branch: str,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float,
) -> Tensor:
    """The FlashAttention-2 that torch bundles, one query against a cache."""
    _band.check_flash(q, v)
    k, v = _cache_of(k, v, k_cmp, v_cmp, branch, window)
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    longest = (1, keys.shape[1])
    out = _band.aten_flash(q.unsqueeze(1), keys, values, None, longest, sm_scale, causal=False)
    return out.squeeze(1)


@implementation(op="decode", name="flash_attn", role="baseline", devices=("cuda",))
def flash_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    gates: Tensor,
    ranges: Tensor,
    *,
    branch: str,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float,
) -> Tensor:
    """The package of FlashAttention's authors, in its form for caches."""
    attend_cache = _band.package_flash("flash_attn_with_kvcache")
    _band.check_flash(q, v)
    k, v = _cache_of(k, v, k_cmp, v_cmp, branch, window)
    out: Tensor = attend_cache(
        q.unsqueeze(1), k.transpose(1, 2), v.transpose(1, 2), softmax_scale=sm_scale
    )
    return out.squeeze(1)
