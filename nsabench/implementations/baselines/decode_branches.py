"""PyTorch's own ways through a branch of a decode step alone, and through the dense step.

Three of them (compressed, window, dense) are attention of one query a head over one stretch of a
cache; the selection is over blocks, gathered side by side.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsabench import implementation
from nsabench.implementations.torch_attention import flash as _flash
from nsabench.implementations.torch_attention.backends import sharing
from nsabench.packages import Package

# q [B,HQ,D], k [B,H,L,D], v [B,H,L,Dv], the scale -> [B,HQ,Dv]
Attention = Callable[[Tensor, Tensor, Tensor, float], Tensor]


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
    most = -(-k.shape[2] // size)  # blocks that hold a token: others are left out
    if most < ranges.shape[2]:
        first = (ranges[..., 0] >= ranges[..., 1]).int().argsort(dim=-1, stable=True)[..., :most]
        ranges = ranges.gather(2, first.unsqueeze(-1).expand(-1, -1, -1, 2))
    token = ranges[..., :1].long() + torch.arange(size, device=q.device)
    keep = (token < ranges[..., 1:]).flatten(2)
    index = token.flatten(2).clamp_(max=k.shape[2] - 1).unsqueeze(-1)
    return attend(
        q,
        k.gather(2, index.expand(-1, -1, -1, k.shape[3])),
        v.gather(2, index.expand(-1, -1, -1, v.shape[3])),
        sm_scale,
        keep.unsqueeze(2),
    )


def newest(k: Tensor, v: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """The last `window` keys of a cache and their values."""
    near = slice(max(k.shape[2] - window, 0), None)
    return k[:, :, near], v[:, :, near]


def of_a_stretch(
    name: str,
    *devices: str,
    kind: str = "specialised",
    package: Package | None = None,
    compiled_by: str = "",
) -> Callable[[Attention], Attention]:
    """Register attention over a whole cache as a baseline of the three ops that are just that, and
    as an alternative to a decode step."""

    def register(attention: Attention) -> Attention:
        def whole(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
            return attention(q, k, v, sm_scale)

        def window(q: Tensor, k: Tensor, v: Tensor, *, window: int, sm_scale: float) -> Tensor:
            return attention(q, *newest(k, v, window), sm_scale)

        calls: dict[str, Callable[..., Tensor]]
        calls = {"decode_compressed": whole, "decode_dense": whole, "decode_window": window}
        for op, call in calls.items():
            implementation(
                op=op,
                name=name,
                role="baseline",
                devices=devices,
                kind=kind,
                package=package,
                compiled_by=compiled_by,
            )(call)
        implementation(
            op="decode_step",
            name=f"dense_{name}",
            role="alternative",
            computes="decode_dense",
            devices=devices,
            kind=kind,
            package=package,
            compiled_by=compiled_by,
        )(whole)
        return attention

    return register


@of_a_stretch("sdpa_heads_as_queries", "cuda", "cpu")
def heads_as_queries(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """SDPA with the heads of a group as queries."""
    return attend(q, k, v, sm_scale)


@of_a_stretch("sdpa_gqa", "cuda", "cpu")
def sdpa_gqa(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """SDPA of one query a head, which knows groups."""
    return attend_grouped(q, k, v, sm_scale)


@of_a_stretch("flash", "cuda")
def flash(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """The FlashAttention-2 that torch bundles, one query against a cache."""
    _flash.check_flash(q, v)
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    longest = (1, keys.shape[1])
    out = _flash.aten_flash(q.unsqueeze(1), keys, values, None, longest, sm_scale, causal=False)
    return out.squeeze(1)


@implementation(
    op="decode_selected",
    name="gathered_sdpa",
    role="baseline",
    devices=("cuda", "cpu"),
    kind="general",
)
def gathered_sdpa(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, block_size: int, sm_scale: float
) -> Tensor:
    """SDPA on the gathered blocks, with the heads of a group as queries."""
    return gathered(q, k, v, ranges, block_size, sm_scale)
