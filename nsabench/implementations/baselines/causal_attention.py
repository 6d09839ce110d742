"""Dense causal attention: each way that torch has.

They are the baselines of `causal_attention`, and what a model could run instead of `nsa_attention`
and of its variant without a window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines.selection_varlen import every
from nsabench.implementations.torch_attention import flash as _flash
from nsabench.implementations.torch_attention.backends import only, sharing
from nsabench.implementations.torch_attention.flex import band_mask, flex, wants_grad
from nsabench.implementations.torch_attention.memoised import memoised
from nsabench.packages import Package

Attention = Callable[..., Tensor]
# The scores of one head that torch's own formula may hold for all heads together.
MOST_SCORES = 1 << 31


def dense(
    name: str,
    devices: Sequence[str] = ("cuda",),
    kind: str = "specialised",
    package: Package | None = None,
    compiled_by: str = "",
) -> Callable[[Attention], Attention]:
    """Register dense attention as a baseline of its own op, and as an alternative to NSA."""

    def register(call: Attention) -> Attention:
        implementation(
            op="causal_attention",
            name=name,
            role="baseline",
            devices=devices,
            kind=kind,
            package=package,
            compiled_by=compiled_by,
        )(call)
        for op in ("nsa_attention", "nsa_without_window"):
            implementation(
                op=op,
                name=f"dense_{name}",
                role="alternative",
                computes="causal_attention",
                devices=devices,
                kind=kind,
                package=package,
                compiled_by=compiled_by,
            )(call)
        return call

    return register


def _sdpa(
    backend: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None,
    sm_scale: float,
    *,
    shares_heads: bool = True,
) -> Tensor:
    if cu_seqlens is not None:
        raise Unsupported("sequences are packed, which SDPA does not know")
    group = q.shape[2] // k.shape[2]
    queries, keys, values = (x.transpose(1, 2) for x in (q, k, v))
    if group > 1 and not shares_heads:
        keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
    shared = sharing(group > 1 and shares_heads)
    with only(backend):
        try:
            out = scaled_dot_product_attention(
                queries, keys, values, is_causal=True, scale=sm_scale, **shared
            )
        except RuntimeError as error:
            if "No available kernel" in str(error):
                raise Unsupported(f"torch has no {backend} attention for this") from error
            raise
    return out.transpose(1, 2)


@dense("sdpa_math", ("cuda", "cpu"))
def sdpa_math(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """SDPA by its formula, packed sequences one after the other."""
    scores = q.shape[0] * q.shape[2] * max_seqlen * max_seqlen
    if scores > MOST_SCORES:
        raise Unsupported(f"it would hold {scores:.1e} scores")
    if cu_seqlens is None:
        return _sdpa("math", q, k, v, None, sm_scale)
    lengths = cu_seqlens.diff().tolist()
    parts = zip(q.split(lengths, 1), k.split(lengths, 1), v.split(lengths, 1), strict=True)
    return torch.cat([_sdpa("math", a, b, c, None, sm_scale) for a, b, c in parts], 1)


@dense("sdpa_flash")
def sdpa_flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """SDPA by the FlashAttention-2 that torch bundles."""
    _flash.check_flash(q, v)
    return _sdpa("flash", q, k, v, cu_seqlens, sm_scale)


@dense("sdpa_cudnn")
def sdpa_cudnn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """SDPA by cuDNN."""
    return _sdpa("cudnn", q, k, v, cu_seqlens, sm_scale)


@dense("sdpa_efficient")
def sdpa_efficient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """SDPA by the memory-efficient kernel, K and V copied for each head of a group."""
    return _sdpa("efficient", q, k, v, cu_seqlens, sm_scale, shares_heads=False)


@dense("flash_varlen")
def flash_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """The FlashAttention-2 that torch bundles, packed."""
    _flash.check_flash(q, v)
    cu = every(q.shape[1], q.shape[0], q.device) if cu_seqlens is None else cu_seqlens
    longest = (max_seqlen, max_seqlen)
    fq, fk, fv = (x.flatten(0, 1) for x in (q, k, v))
    return _flash.aten_flash(fq, fk, fv, (cu, cu), longest, sm_scale).view_as(q)


def _block_mask(t: int, device: torch.device) -> Any:
    def seen(b: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return ki <= qi

    return flex()[1].create_block_mask(seen, None, None, t, t, device=str(device))


_block_mask_of = memoised(2)(_block_mask)


@dense("flex_attention", kind="general", compiled_by="triton")
def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """FlexAttention with a causal block mask."""
    t = q.shape[1]
    _flash.refuse_mask(t, t)
    if cu_seqlens is None:
        return _flash.flex_attend(q, k, v, _block_mask_of(t, q.device), sm_scale)
    position = torch.arange(t, dtype=torch.int32, device=q.device)
    first = cu_seqlens[_flash.sequence_of(cu_seqlens, position)]
    mask = band_mask(first, position + 1, t, backward=wants_grad(q, k, v))
    return _flash.flex_attend(q, k, v, mask, sm_scale)
