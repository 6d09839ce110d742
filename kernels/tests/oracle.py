"""Float64 references for the kernel tests: written for clarity, one row at a time."""

from __future__ import annotations

import itertools
import math

import torch

TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.5e-2, torch.float32: 2e-5}
"""Largest absolute error of an output of N(0, 1) inputs, per dtype."""


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [H,D] over k [L,D], v [L,Dv] in float64: (out [H,Dv], lse [H]); L may be 0."""
    if k.shape[0] == 0:
        empty = torch.full((q.shape[0],), -math.inf, dtype=torch.float64, device=q.device)
        return q.new_zeros((q.shape[0], v.shape[1]), dtype=torch.float64), empty
    s = q.double() @ k.double().T * scale
    return torch.softmax(s, -1) @ v.double(), torch.logsumexp(s, -1)


def rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference of ``selection_rows``."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    pairs = [attend(q[n], k[n], v[n], scale) for n in range(q.shape[0])]
    return torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])


def varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference of ``selection_varlen``."""
    edges = cu_seqlens.tolist()
    pairs = [
        attend(q[n], k[a:b], v[a:b], q.shape[-1] ** -0.5)
        for n, (a, b) in enumerate(itertools.pairwise(edges))
    ]
    return torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])


def union_mask(ranges: torch.Tensor, s_kv: int) -> torch.Tensor:
    """ranges [..., n, 2] → bool [..., s_kv]: the keys that some span contains."""
    t = torch.arange(s_kv, device=ranges.device)
    return ((t >= ranges[..., :1]) & (t < ranges[..., 1:])).any(-2)


def ranges(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spans: torch.Tensor,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference of ``selection_ranges`` (spans [B,S,G,n,2])."""
    b, s, g, h, d = q.shape
    scale = d**-0.5 if scale is None else scale
    mask = union_mask(spans, k.shape[2])
    out = torch.zeros((b, s, g, h, v.shape[-1]), dtype=torch.float64, device=q.device)
    lse = torch.zeros((b, s, g, h), dtype=torch.float64, device=q.device)
    for bi in range(b):
        for si in range(s):
            for gi in range(g):
                keep = mask[bi, si, gi]
                out[bi, si, gi], lse[bi, si, gi] = attend(
                    q[bi, si, gi], k[bi, gi][keep], v[bi, gi][keep], scale
                )
    return out, lse


def assert_close(
    got: tuple[torch.Tensor, torch.Tensor],
    want: tuple[torch.Tensor, torch.Tensor],
    dtype: torch.dtype,
) -> None:
    """Outputs within the dtype's tolerance, LSE within 2e-4, infinities and dtypes equal."""
    out, lse = got
    assert out.dtype == dtype and lse.dtype == torch.float32
    assert out.shape == want[0].shape and lse.shape == want[1].shape
    torch.testing.assert_close(out.double(), want[0], atol=TOLERANCE[dtype], rtol=1e-3)
    torch.testing.assert_close(lse.double(), want[1], atol=2e-4, rtol=1e-4)


def banded(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keep: torch.Tensor,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Grouped attention q [B,T,HQ,D], k, v [B,N,H,...] under a mask keep [T,N], differentiable:
    out [B,T,HQ,Dv], lse [B,T,HQ], and the weights of each group together [B,T,H,N]."""
    group = q.shape[2] // k.shape[2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    kd, vd = (x.double().repeat_interleave(group, 2) for x in (k, v))
    s = torch.einsum("bthd,bnhd->bhtn", q.double(), kd) * scale
    s = s.masked_fill(~keep, -math.inf)
    empty = ~keep.any(-1)
    p = torch.softmax(s.masked_fill(empty[:, None], 0), -1) * keep
    out = torch.einsum("bhtn,bnhd->bthd", p, vd)
    of_groups = p.unflatten(1, (k.shape[2], group)).sum(2).transpose(1, 2)
    return out, torch.logsumexp(s, -1).transpose(1, 2), of_groups


def window_mask(lengths: list[int], window: int) -> torch.Tensor:
    """bool [T,T] of sequences packed one after another."""
    blocks = [torch.ones(n, n, dtype=torch.bool).tril().triu(1 - window) for n in lengths]
    return torch.block_diag(*[b.float() for b in blocks]).bool()


def compressed_mask(lengths: list[int], block: int, stride: int) -> torch.Tensor:
    """bool [T,N]: which compressed keys have all their tokens at or before a query."""
    masks = []
    for n in lengths:
        keys = max(0, (n - block) // stride + 1)
        ends = torch.tensor([i * stride + block - 1 for i in range(keys)])
        masks.append(ends[None, :] <= torch.arange(n)[:, None])
    return torch.block_diag(*[m.float() for m in masks]).bool()
