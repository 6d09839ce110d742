"""Attention over one band of keys a query: causal, a window, or complete compressed keys."""

from __future__ import annotations

from functools import partial
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


def _mask(
    packing: tuple[Tensor, ...],
    t: int,
    keys: int,
    device: torch.device,
    window: int,
    block: int,
    stride: int,
) -> Tensor:
    """Return which keys each query sees, bool [T,keys]."""
    key = torch.arange(keys, dtype=torch.int32, device=device)
    position = torch.arange(t, dtype=torch.int32, device=device)
    start = first = torch.zeros_like(position)
    behind = position + 1
    if packing:
        own = _torch.sequence_of(packing[0], position)
        start, first = packing[0][own], packing[-1][own]
    if stride:
        complete = (position - start + (1 + stride - block)) // stride
        behind = first + complete.clamp_(min=0)
        if packing:  # a control asks for incomplete keys: none may be of the next sequence
            behind = torch.minimum(behind, packing[-1][1:][own])
    elif window:
        first = torch.maximum(first, position - (window - 1))
    return (key >= first.unsqueeze(1)) & (key < behind.unsqueeze(1))


_unpacked_mask = _torch.memoised(2)(partial(_mask, ()))


@baseline("sliding_window", "masked_sdpa", on_cpu=True, kind="general")
@baseline("compressed", "masked_sdpa", on_cpu=True, kind="general")
def masked_sdpa(q: Tensor, k: Tensor, v: Tensor, *packing: Tensor, **options: Any) -> Tensor:
    """SDPA over all keys under a mask."""
    sizes = (q.shape[1], k.shape[1], q.device, *_band_sizes(options))
    _torch.refuse_mask(q.shape[1], k.shape[1])
    keep = _mask(packing, *sizes) if packing else _unpacked_mask(*sizes)
    return _torch.masked_sdpa(q, k, v, keep, options["sm_scale"])


def attend_sequences(
    attend: _torch.FlashAttention, q: Tensor, k: Tensor, v: Tensor, cu: Packing, **options: Any
) -> Tensor:
    """Compute causal_attention or sliding_window by a FlashAttention."""
    sizes = ((options["max_seqlen"],) * 2, options["sm_scale"], options.get("window", 0))
    if cu is None:
        return attend(q, k, v, None, *sizes)
    return attend(q[0], k[0], v[0], (cu, cu), *sizes).unsqueeze(0)


@dense_attention("flash_varlen")
@baseline("sliding_window", "flash_varlen")
def flash_varlen(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """The FlashAttention-2 that torch bundles."""
    return attend_sequences(_torch.aten_flash, q, k, v, cu, **options)


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
