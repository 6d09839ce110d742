"""PyTorch's own ways to attend over a sliding window.

Masks and block masks of equally long sequences depend on sizes alone and are made once. For packed
sequences they are made in every call.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import Packing, baseline

_baseline = partial(baseline, "sliding_window")


@_torch.memoised(2)
def _keep(t: int, window: int, device: torch.device) -> Tensor:
    position = torch.arange(t, device=device)
    return (position <= position.unsqueeze(1)) & (position > position.unsqueeze(1) - window)


def _tokens(t: int, device: torch.device) -> Tensor:
    return torch.arange(t, dtype=torch.int32, device=device)


@_baseline("masked_sdpa", on_cpu=True, kind="general")
def masked_sdpa(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """SDPA over all keys under a mask."""
    t = q.shape[1]
    _torch.refuse_mask(t, t)
    keep = _keep(t, options["window"], q.device)
    if cu is not None:
        sequence = _torch.sequence_of(cu, _tokens(t, q.device))
        keep = keep & (sequence == sequence.unsqueeze(1))
    return _torch.masked_sdpa(q, k, v, keep, options["sm_scale"])


@_baseline("flash_varlen")
def flash_varlen(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """The FlashAttention-2 that torch bundles, packed, with its window."""
    return _torch.packed_flash(q, k, v, cu, **options)


@_baseline("flash")
def flash(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """FlashAttention-2 with its window, without packing."""
    _torch.check_flash(q, v)
    if cu is not None:
        raise Unsupported("sequences are packed; flash_varlen is the form for them")
    longest = (options["max_seqlen"],) * 2
    return _torch.aten_flash(q, k, v, None, longest, options["sm_scale"], options["window"])


@_baseline("varlen_attn")
def varlen_attn(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """The public varlen attention."""
    attend = _torch.varlen_attention()
    _torch.check_flash(q, v)
    if not _torch.accepts(attend, "window_size", "scale"):
        raise Unsupported("this torch's varlen_attn takes no window or no scale")
    cu, longest = _torch.packed(q, cu), (options["max_seqlen"],) * 2
    extra: dict[str, Any] = {"enable_gqa": True} if _torch.accepts(attend, "enable_gqa") else {}
    extra |= {"scale": options["sm_scale"], "window_size": (options["window"] - 1, 0)}
    out = attend(*(x.flatten(0, 1) for x in (q, k, v)), cu, cu, *longest, **extra)
    return out.view_as(q)


@_torch.memoised(2)
def _block_mask(t: int, window: int, device: torch.device) -> Any:
    def seen(b: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return (ki <= qi) & (ki > qi - window)

    return _torch.create_mask(seen, t, t, device)


def _bounds(cu_seqlens: Tensor, t: int, window: int) -> tuple[Tensor, Tensor]:
    """Return the keys that queries of packed sequences see: the first and the end, int32 [T]."""
    position = _tokens(t, cu_seqlens.device)
    first = cu_seqlens[_torch.sequence_of(cu_seqlens, position)]
    return torch.maximum(first, position - (window - 1)), position + 1


@_baseline("flex_attention", kind="general", compiled_by="triton")
def flex_attention(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """FlexAttention with a block mask."""
    t, window = q.shape[1], options["window"]
    _torch.refuse_mask(t, t)
    if cu is None:
        mask = _block_mask(t, window, q.device)
    else:
        bounds = _bounds(cu, t, window)
        mask = _torch.band_mask(*bounds, t, backward=_torch.wants_grad(q, k, v))
    return _torch.flex_attend(q, k, v, mask, options["sm_scale"])
