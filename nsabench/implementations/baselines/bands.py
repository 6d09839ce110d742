"""Attention over one band of keys a query: causal, a window, or complete compressed keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import Packing, baseline
from nsabench.implementations.baselines.causal_attention import dense_attention


def _band_sizes(options: dict[str, Any]) -> tuple[int, int, int]:
    """Return window, block and stride; 0 for those that the op does not have."""
    return options.get("window", 0), options.get("block", 0), options.get("stride", 0)


def _bounds(
    position: Tensor, packing: tuple[Tensor, ...], window: int, block: int, stride: int
) -> tuple[Tensor, Tensor]:
    """Return the first key that each query sees and the end of its keys, both int32 [T]."""
    start = first = torch.zeros_like(position)
    if packing:
        own = _torch.sequence_of(packing[0], position)
        start, first = packing[0][own], packing[-1][own]
    if stride:
        complete = (position - start + (1 + stride - block)) // stride
        return first, first + complete.clamp_(min=0)
    if window:
        first = torch.maximum(first, position - (window - 1))
    return first, position + 1


def _positions(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1], dtype=torch.int32, device=x.device)


def _mask(lo: Tensor, hi: Tensor, keys: int) -> Tensor:
    key = torch.arange(keys, dtype=torch.int32, device=lo.device)
    return (key >= lo.unsqueeze(1)) & (key < hi.unsqueeze(1))


@_torch.memoised(2)
def _unpacked_mask(t: int, keys: int, device: torch.device, *sizes: int) -> Tensor:
    position = torch.arange(t, dtype=torch.int32, device=device)
    return _mask(*_bounds(position, (), *sizes), keys)


@baseline("sliding_window", "masked_sdpa", on_cpu=True, kind="general")
@baseline("compressed", "masked_sdpa", on_cpu=True, kind="general")
def masked_sdpa(q: Tensor, k: Tensor, v: Tensor, *packing: Tensor, **options: Any) -> Tensor:
    """SDPA over all keys under a mask."""
    t, keys = q.shape[1], k.shape[1]
    _torch.refuse_mask(t, keys)
    sizes = _band_sizes(options)
    if packing:
        position = _positions(q)
        lo, hi = _bounds(position, packing, *sizes)
        # A control asks for incomplete keys: none may be of the next sequence.
        end = packing[-1][1:][_torch.sequence_of(packing[0], position)]
        keep = _mask(lo, torch.minimum(hi, end), keys)
    else:
        keep = _unpacked_mask(t, keys, q.device, *sizes)
    return _torch.masked_sdpa(q, k, v, keep, options["sm_scale"])


def attend_sequences(
    attend: _torch.FlashAttention, q: Tensor, k: Tensor, v: Tensor, cu: Packing, **options: Any
) -> Tensor:
    """Compute causal_attention or sliding_window by a FlashAttention."""
    sizes = ((options["max_seqlen"],) * 2, options["sm_scale"], options.get("window", 0))
    if cu is None:
        return attend(q, k, v, None, *sizes)
    return attend(q[0], k[0], v[0], (cu, cu), *sizes).unsqueeze(0)


@baseline("sliding_window", "flash")
def flash(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """The FlashAttention-2 that torch bundles, without packing."""
    if cu is not None:
        raise Unsupported("sequences are packed; use flash_varlen")
    return attend_sequences(_torch.aten_flash, q, k, v, None, **options)


@dense_attention("flash_varlen")
@baseline("sliding_window", "flash_varlen")
def flash_varlen(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """The FlashAttention-2 that torch bundles, as packed sequences even of equal length."""
    pq, pk, pv = (x.flatten(0, 1).unsqueeze(0) for x in (q, k, v))
    cu = _torch.get_cu_seqlens(q, cu)
    return attend_sequences(_torch.aten_flash, pq, pk, pv, cu, **options).view_as(q)


@_torch.memoised(2)
def _block_mask(
    t: int, keys: int, device: torch.device, window: int, block: int, stride: int
) -> Any:
    def causal(b: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return ki <= qi

    def near(b: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return (ki <= qi) & (ki > qi - window)

    def complete(b: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return ki * stride + block <= qi + 1

    seen = complete if stride else near if window else causal
    create = _torch.flex()[1].create_block_mask
    return create(seen, None, None, t, keys, device=str(device))


@dense_attention("flex_attention", kind="general", compiled_by="triton")
@baseline("sliding_window", "flex_attention", kind="general", compiled_by="triton")
@baseline("compressed", "flex_attention", kind="general", compiled_by="triton")
def flex_attention(q: Tensor, k: Tensor, v: Tensor, *packing: Tensor, **options: Any) -> Tensor:
    """FlexAttention with a block mask, without packing."""
    if packing:
        raise Unsupported("it takes no packed sequences")
    t, keys = q.shape[1], k.shape[1]
    _torch.refuse_mask(t, keys)
    mask = _block_mask(t, keys, q.device, *_band_sizes(options))
    return _torch.flex_attend(q, k, v, mask, options["sm_scale"])
