"""Baselines whose queries see a band of keys: all up to the query, a window, or compressed keys.

Causal attention is also the dense alternative that a model could run instead of NSA.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import F, Packing, baseline
from nsabench.implementations.torch_attention import FlashAttention

MOST_SCORES = 1 << 31  # the most scores, over all heads, since torch's `math` stores all of them


def dense_attention(name: str, **declared: Any) -> Callable[[F], F]:
    """Register a baseline of causal_attention, also as an alternative of both NSA ops."""

    def register(call: F) -> F:
        baseline("causal_attention", name, **declared)(call)
        for op in ("nsa_attention", "nsa_without_window"):
            other = {"role": "alternative", "computes": "causal_attention", **declared}
            baseline(op, f"dense_{name}", **other)(call)
        return call

    return register


def causal_sdpa(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    queries, keys, values = (x.transpose(1, 2) for x in (q, k, v))
    options = {"is_causal": True, **_torch.share_heads(q.shape[2] != k.shape[2])}
    out = scaled_dot_product_attention(queries, keys, values, scale=sm_scale, **options)
    return out.transpose(1, 2)


@dense_attention("sdpa_math", on_cpu=True)
def sdpa_math(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    scores = q.shape[0] * q.shape[2] * options["max_seqlen"] ** 2
    if scores > MOST_SCORES:
        raise Unsupported(f"it would keep {scores:.1e} scores in memory")
    lengths = [q.shape[1]] if cu is None else cu.diff().tolist()
    parts = zip(q.split(lengths, 1), k.split(lengths, 1), v.split(lengths, 1), strict=True)
    attend = _torch.forced(causal_sdpa, "math")
    outs = [attend(*part, options["sm_scale"]) for part in parts]
    return outs[0] if cu is None else torch.cat(outs, 1)


def _attend_by_backend(
    backend: str,
    attend: _torch.Attention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu: Packing = None,
    **options: Any,
) -> Tensor:
    if cu is not None:
        raise Unsupported("SDPA does not support packed sequences")
    if backend == "flash":
        _torch.check_flash(q, v)
    group = q.shape[2] // k.shape[2]
    if backend == "efficient" and group > 1:  # this backend cannot share K and V between heads
        k, v = (x.transpose(1, 2).repeat_interleave(group, 1).transpose(1, 2) for x in (k, v))
    return attend(q, k, v, options["sm_scale"])


for _backend in ("flash", "cudnn", "efficient"):
    _attend = partial(_attend_by_backend, _backend, _torch.forced(causal_sdpa, _backend))
    dense_attention(f"sdpa_{_backend}")(_attend)


def _band_sizes(options: dict[str, Any]) -> tuple[int, int, int]:
    return options.get("window", 0), options.get("block", 0), options.get("stride", 0)


def _mask(
    packing: tuple[Tensor, ...], t: int, keys: int, device: torch.device, *band: int
) -> Tensor:
    """Return which keys each query sees, bool [T,keys]. `band` is what `_band_sizes` returns."""
    window, block, stride = band
    key = torch.arange(keys, dtype=torch.int32, device=device)
    position = torch.arange(t, dtype=torch.int32, device=device)
    start = first = torch.zeros_like(position)
    behind = position + 1
    if packing:
        own = torch.searchsorted(packing[0][1:].contiguous(), position, right=True)
        start, first = packing[0][own], packing[-1][own]
    if stride:
        complete = (position - start + (1 + stride - block)) // stride
        behind = first + complete.clamp_(min=0)
        if packing:  # the control `incomplete_key` would otherwise leave the query's sequence
            behind = torch.minimum(behind, packing[-1][1:][own])
    elif window:
        first = torch.maximum(first, position - (window - 1))
    return (key >= first.unsqueeze(1)) & (key < behind.unsqueeze(1))


_unpacked_mask = _torch.memoised(2)(partial(_mask, ()))


@baseline("sliding_window", "masked_sdpa", on_cpu=True, kind="general")
@baseline("compressed", "masked_sdpa", on_cpu=True, kind="general")
def masked_sdpa(q: Tensor, k: Tensor, v: Tensor, *packing: Tensor, **options: Any) -> Tensor:
    sizes = (q.shape[1], k.shape[1], q.device, *_band_sizes(options))
    _torch.refuse_mask(q.shape[1], k.shape[1])
    keep = _mask(packing, *sizes) if packing else _unpacked_mask(*sizes)
    return _torch.masked_sdpa(q, k, v, keep, options["sm_scale"])


def attend_sequences(
    attend: FlashAttention, q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any
) -> Tensor:
    sizes = ((options["max_seqlen"],) * 2, options["sm_scale"], options.get("window", 0))
    if cu is None:
        return attend(q, k, v, None, *sizes)
    return attend(q[0], k[0], v[0], (cu, cu), *sizes).unsqueeze(0)


@dense_attention("flash_varlen")
@baseline("sliding_window", "flash_varlen")
def flash_varlen(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    return attend_sequences(_torch.aten_flash, q, k, v, cu, **options)


def attend_folded(
    attend: FlashAttention, q: Tensor, k: Tensor, v: Tensor, *packing: Tensor, **options: Any
) -> Tensor:
    """Attend to compressed keys by a FlashAttention, which has no strided causal mask.

    A new key is complete after every `stride` queries. The queries in between see the same keys, so
    they become heads of one query. With one padding token in front, a causal mask is right.
    """
    if packing:
        raise Unsupported("it does not support packed sequences")
    b, t, hq, d = q.shape
    stride = options["stride"]
    if options["block"] % stride:
        raise Unsupported("FlashAttention needs a stride that divides the block")
    steps = t // stride + 1
    folded = pad(q, (0, 0, 0, 0, 1, steps * stride - t - 1)).view(b, steps, stride * hq, d)
    keys, values = (x.repeat(1, 1, stride, 1) for x in (k, v))
    out = attend(folded, keys, values, None, (steps, keys.shape[1]), options["sm_scale"])
    return out.view(b, -1, hq, d)[:, 1 : t + 1]


@baseline("compressed", "flash")
def flash_folded(*tensors: Tensor, **options: Any) -> Tensor:
    return attend_folded(_torch.aten_flash, *tensors, **options)


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
    if packing:
        raise Unsupported("it does not support packed sequences")
    t, keys = q.shape[1], k.shape[1]
    _torch.refuse_mask(t, keys)
    mask = _block_mask(t, keys, q.device, *_band_sizes(options))
    return _torch.flex_attend(q, k, v, mask, options["sm_scale"])
