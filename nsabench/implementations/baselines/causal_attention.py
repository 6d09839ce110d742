"""Dense causal attention: each way that torch has.

These are the baselines of `causal_attention`, and what a model could run instead of `nsa_attention`
and of its variant without a window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import Packing, alternative, baseline

Attention = Callable[..., Tensor]
# The scores of all heads that torch's own formula may hold.
MOST_SCORES = 1 << 31


def dense(name: str, **declared: Any) -> Callable[[Attention], Attention]:
    """Register dense attention as a baseline of its own op, and as an alternative to NSA."""

    def register(call: Attention) -> Attention:
        baseline("causal_attention", name, **declared)(call)
        for op in ("nsa_attention", "nsa_without_window"):
            alternative(op, f"dense_{name}", "causal_attention", **declared)(call)
        return call

    return register


def causal_sdpa(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """Call SDPA [B,T,HQ,D], K and V shared by the heads of a group."""
    queries, keys, values = (x.transpose(1, 2) for x in (q, k, v))
    options = {"is_causal": True, **_torch.sharing(q.shape[2] != k.shape[2])}
    out = scaled_dot_product_attention(queries, keys, values, scale=sm_scale, **options)
    return out.transpose(1, 2)


def _sdpa(
    backend: str, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Packing, sm_scale: float
) -> Tensor:
    if cu_seqlens is not None:
        raise Unsupported("sequences are packed, which SDPA does not know")
    with _torch.only(backend):
        try:
            return causal_sdpa(q, k, v, sm_scale)
        except RuntimeError as error:
            if "No available kernel" in str(error):
                raise Unsupported(f"torch has no {backend} attention for this") from error
            raise


@dense("sdpa_math", on_cpu=True)
def sdpa_math(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """SDPA by its formula, packed sequences one after the other."""
    scores = q.shape[0] * q.shape[2] * options["max_seqlen"] ** 2
    if scores > MOST_SCORES:
        raise Unsupported(f"it would hold {scores:.1e} scores")
    if cu is None:
        return _sdpa("math", q, k, v, None, options["sm_scale"])
    lengths = cu.diff().tolist()
    parts = zip(q.split(lengths, 1), k.split(lengths, 1), v.split(lengths, 1), strict=True)
    return torch.cat([_sdpa("math", a, b, c, None, options["sm_scale"]) for a, b, c in parts], 1)


@dense("sdpa_flash")
def sdpa_flash(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """SDPA by the FlashAttention-2 that torch bundles."""
    _torch.check_flash(q, v)
    return _sdpa("flash", q, k, v, cu, options["sm_scale"])


@dense("sdpa_cudnn")
def sdpa_cudnn(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """SDPA by cuDNN."""
    return _sdpa("cudnn", q, k, v, cu, options["sm_scale"])


@dense("sdpa_efficient")
def sdpa_efficient(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """SDPA by the memory-efficient kernel, K and V copied for each head of a group."""
    group = q.shape[2] // k.shape[2]
    if cu is None and group > 1:
        k, v = (x.transpose(1, 2).repeat_interleave(group, 1).transpose(1, 2) for x in (k, v))
    return _sdpa("efficient", q, k, v, cu, options["sm_scale"])


@dense("flash_varlen")
def flash_varlen(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """The FlashAttention-2 that torch bundles, packed."""
    return _torch.packed_flash(q, k, v, cu, **options)


@_torch.memoised(2)
def _block_mask(t: int, device: torch.device) -> Any:
    def seen(b: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return ki <= qi

    return _torch.create_mask(seen, t, t, device)


@dense("flex_attention", kind="general", compiled_by="triton")
def flex_attention(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """FlexAttention with a causal block mask."""
    t = q.shape[1]
    _torch.refuse_mask(t, t)
    if cu is None:
        return _torch.flex_attend(q, k, v, _block_mask(t, q.device), options["sm_scale"])
    position = torch.arange(t, dtype=torch.int32, device=q.device)
    first = cu[_torch.sequence_of(cu, position)]
    mask = _torch.band_mask(first, position + 1, t, backward=_torch.wants_grad(q, k, v))
    return _torch.flex_attend(q, k, v, mask, options["sm_scale"])
