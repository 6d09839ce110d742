"""All of Native Sparse Attention in plain PyTorch: slow, but it runs everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations._register import Packing, baseline
from nsabench.implementations.torch_attention import wants_grad

LOCAL = 2  # blocks that are always selected: the query's own, and the block before it
QUERIES = 128
# The most elements that a case may gather: without a backward, and with one, which keeps them.
MOST_GATHERED, MOST_KEPT = 1 << 34, 1 << 33


def _means(x: Tensor, block: int, stride: int) -> Tensor:
    if x.shape[0] < block:
        return x[:0]
    return x.unfold(0, block, stride).mean(-1)


def _softmax(logits: Tensor, keep: Tensor) -> Tensor:
    masked = logits.masked_fill(~keep, float("-inf"))
    masked = masked.masked_fill(~keep.any(-1, keepdim=True), 0.0)
    return torch.softmax(masked, -1) * keep


def block_scores(weights: Tensor, blocks: int, block: int, stride: int, size: int) -> Tensor:
    """Return the scores [A,B,blocks] of blocks of `size` tokens: sums of weights [A,B,Nc]."""
    scores = weights.new_zeros(*weights.shape[:2], blocks + 1)
    key = torch.arange(weights.shape[2], device=weights.device)
    for place in range(block // stride):
        # Keys that reach past the last block are added to an extra block, which is dropped.
        scores.index_add_(2, ((key + place) * stride // size).clamp(max=blocks), weights)
    return scores[..., :blocks]


def _choose(weights: Tensor, position: Tensor, blocks: int, sizes: dict[str, int]) -> Tensor:
    """Return the blocks that n queries select by weights [H,n,Nc]: int64 [H,n,S], -1 for none."""
    size = sizes["block_size"]
    scores = block_scores(weights, blocks, sizes["block"], sizes["stride"], size)
    index, own = torch.arange(blocks, device=weights.device), (position // size).unsqueeze(1)
    scores = scores.masked_fill((index == 0) | (index > own - LOCAL), float("inf"))
    scores = scores.masked_fill(index > own, float("-inf"))
    best, order = torch.sort(scores, dim=-1, descending=True, stable=True)
    return order.masked_fill(best == float("-inf"), -1)[..., : sizes["n_selected"]]


def _sequence(tensors: list[Tensor], sizes: dict[str, int], sm_scale: float) -> Iterator[Tensor]:
    """Yield the outputs [n,HQ,Dv] of a sequence, for up to QUERIES queries at a time."""
    # Compute in float32: logits in 16 bits would lose more precision than any kernel does.
    dtype, (q, k, v, gates) = tensors[0].dtype, (x.float() for x in tensors)
    tokens, heads = k.shape[:2]
    block, stride, size = (sizes[name] for name in ("block", "stride", "block_size"))
    k_cmp, v_cmp = (_means(x, block, stride).transpose(0, 1) for x in (k, v))  # [H,Nc,D]
    ends = torch.arange(k_cmp.shape[1], device=q.device) * stride + block
    kh, vh = k.transpose(0, 1), v.transpose(0, 1)
    of_head = torch.arange(heads, device=q.device).view(-1, 1, 1)
    for first in range(0, tokens, QUERIES):
        some = slice(first, first + QUERIES)
        position = torch.arange(tokens, device=q.device)[some]
        grouped = q[some].unflatten(1, (heads, -1)).permute(1, 2, 0, 3)  # [H,G,n,D]
        shape = grouped.shape[:3]
        complete = ends <= position.unsqueeze(1) + 1
        flat = grouped.flatten(1, 2)
        p = _softmax((flat @ k_cmp.mT).unflatten(1, shape[1:]) * sm_scale, complete)
        compressed = (p.flatten(1, 2) @ v_cmp).unflatten(1, shape[1:])
        with torch.no_grad():
            chosen = _choose(p.detach().sum(1), position, -(-tokens // size), sizes)
        keys = (chosen.unsqueeze(-1) * size + torch.arange(size, device=q.device)).flatten(2)
        keep = (keys >= 0) & (keys <= position.unsqueeze(1))
        keys = keys.clamp(0, tokens - 1)
        by_query = grouped.transpose(1, 2)  # [H,n,G,D]
        p = _softmax((by_query @ kh[of_head, keys].mT) * sm_scale, keep.unsqueeze(2))
        selected = (p @ vh[of_head, keys]).transpose(1, 2)
        branches = [compressed, selected]
        if sizes["window"]:
            start = max(first + 1 - sizes["window"], 0)
            near = torch.arange(start, min(first + QUERIES, tokens), device=q.device)
            behind = position.unsqueeze(1) - near
            seen = (behind >= 0) & (behind < sizes["window"])
            around = slice(start, min(first + QUERIES, tokens))
            p = _softmax((flat @ kh[:, around].mT).unflatten(1, shape[1:]) * sm_scale, seen)
            branches.append((p.flatten(1, 2) @ vh[:, around]).unflatten(1, shape[1:]))
        out = torch.stack(branches, -2)  # [H,G,n,3,Dv]; without a window, 2 instead of 3
        out = out.permute(2, 0, 1, 3, 4).flatten(1, 2)
        yield (gates[some].unsqueeze(-1) * out).sum(-2).to(dtype)


_torch_nsa = partial(baseline, name="torch_nsa", on_cpu=True, kind="general")


@_torch_nsa("nsa_attention")
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Tensor,
    cu_seqlens: Packing = None,
    *,
    sm_scale: float,
    max_seqlen: int,
    **sizes: int,
) -> Tensor:
    keys = q.shape[0] * q.shape[1] * k.shape[2] * sizes["n_selected"] * sizes["block_size"]
    gathered = keys * (k.shape[3] + v.shape[3])
    if gathered > (MOST_KEPT if wants_grad(q, k, v, gates) else MOST_GATHERED):
        raise Unsupported(f"it would gather {gathered:.1e} elements")
    bounds = [0, q.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    rows = []
    for b in range(q.shape[0]):
        parts: list[Tensor] = []
        for start, end in pairwise(bounds):
            tensors = [x[b, start:end] for x in (q, k, v, gates)]
            parts.extend(_sequence(tensors, sizes, sm_scale))
        rows.append(torch.cat(parts))
    return torch.stack(rows)


@_torch_nsa("nsa_without_window")
def attend_without_window(*tensors: Any, block_size: int, **options: Any) -> Tensor:
    options |= {"block": block_size, "stride": block_size, "block_size": block_size, "window": 0}
    return attend(*tensors, **options)
