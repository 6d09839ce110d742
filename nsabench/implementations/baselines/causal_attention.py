"""Dense causal attention: each way that torch has, and the packages of FlashAttention's authors.

They are the baselines of `causal_attention`, and what a model could run instead of `nsa_attention`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
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

Attention = Callable[..., Tensor]
# The scores of one head that torch's own formula may hold for all heads together.
MOST_SCORES = 1 << 31


def _dense(name: str, devices: Sequence[str] = ("cuda",)) -> Callable[[Attention], Attention]:
    """Register dense attention as a baseline of its own op, and as an alternative to NSA."""

    def register(call: Attention) -> Attention:
        implementation(op="causal_attention", name=name, role="baseline", devices=devices)(call)
        implementation(
            op="nsa_attention",
            name=f"dense_{name}",
            role="alternative",
            computes="causal_attention",
            devices=devices,
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


@_dense("sdpa_math", ("cuda", "cpu"))
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


@_dense("sdpa_flash")
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


@_dense("sdpa_cudnn")
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


@_dense("sdpa_efficient")
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


@_dense("flash_varlen")
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


@_dense("flash_attn")
def flash_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """The package of FlashAttention's authors, version 2."""
    packed = cu_seqlens is not None
    attend = _flash.package_flash("flash_attn_varlen_func" if packed else "flash_attn_func")
    _flash.check_flash(q, v)
    return _by_package(attend, q, k, v, cu_seqlens, sm_scale, max_seqlen)


@_dense("flash_attn_4")
def flash_attn_4(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """FlashAttention-4: `flash_attn.cute`, of the package flash-attn-4."""
    packed = cu_seqlens is not None
    attend = cute_flash("flash_attn_varlen_func" if packed else "flash_attn_func")
    _flash.check_flash(q, v)
    return _by_package(attend, q, k, v, cu_seqlens, sm_scale, max_seqlen)


@cache
def cute_flash(name: str) -> Any:
    """A function of FlashAttention-4. Raises `Unsupported` where it cannot be imported."""
    try:
        return getattr(importlib.import_module("flash_attn.cute.interface"), name)
    except (ImportError, AttributeError) as error:
        raise Unsupported(f"flash_attn.cute (flash-attn-4) cannot be imported: {error}") from error


def _by_package(
    attend: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    options: dict[str, Any] = {"softmax_scale": sm_scale, "causal": True}
    if cu_seqlens is None:
        return _alone(attend(q, k, v, **options))
    options |= {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens}
    options |= {"max_seqlen_q": max_seqlen, "max_seqlen_k": max_seqlen}
    return _alone(attend(q[0], k[0], v[0], **options)).unsqueeze(0)


def _alone(returned: Any) -> Tensor:
    """The output; some versions return the log-sum-exp with it."""
    out: Tensor = returned[0] if isinstance(returned, tuple) else returned
    return out


def _block_mask(t: int, device: torch.device) -> Any:
    def seen(b: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return ki <= qi

    return flex()[1].create_block_mask(seen, None, None, t, t, device=str(device))


_block_mask_of = memoised(2)(_block_mask)


@_dense("flex_attention")
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
