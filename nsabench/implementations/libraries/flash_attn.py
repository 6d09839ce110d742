"""FlashAttention-2, the package of its authors: dense, packed, with a window, against a cache.

It computes no selection: `flash_attn_with_kvcache` takes pages of 256 keys and more, and chosen
blocks are smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import Packing, baseline
from nsabench.implementations.baselines import compressed as _compressed
from nsabench.implementations.baselines.causal_attention import dense
from nsabench.implementations.baselines.decode import of_a_stretch
from nsabench.implementations.baselines.selection_varlen import heads_as_queries
from nsabench.implementations.libraries import _calls
from nsabench.packages import Package
from nsabench.packages.catalogue import FLASH_ATTN

PLAIN, VARLEN, CACHED = "flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"
TENSORS = ("q", "k", "v", "softmax_scale", "causal")
PACKED = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


def alone(returned: Any) -> Tensor:
    """Return the output; versions differ in whether the log-sum-exp comes with it."""
    return returned[0] if isinstance(returned, tuple) else returned


@dataclass(frozen=True)
class Flash:
    """The functions in a module of a FlashAttention, as both versions have them."""

    package: Package
    module: str

    def find(self, name: str, *takes: str) -> Any:
        """Return a function. Raises `Unsupported` as `_calls.function` does."""
        return _calls.function(self.package, f"{self.module}:{name}", *takes)

    def causal(self, q: Tensor, k: Tensor, v: Tensor, cu: Packing, **sizes: Any) -> Tensor:
        """Compute causal_attention, or with the size `window` sliding_window."""
        options: dict[str, Any] = {"softmax_scale": sizes["sm_scale"], "causal": True}
        if "window" in sizes:
            options["window_size"] = (sizes["window"] - 1, 0)
        extra = ("window_size",) if "window" in sizes else ()
        if cu is None:
            attend = self.find(PLAIN, *TENSORS, *extra)
            _torch.check_flash(q, v)
            return alone(attend(q, k, v, **options))
        attend = self.find(VARLEN, *TENSORS, *PACKED, *extra)
        _torch.check_flash(q, v)
        longest = sizes["max_seqlen"]
        options |= dict(zip(PACKED, (cu, cu, longest, longest), strict=True))
        return alone(attend(q[0], k[0], v[0], **options)).unsqueeze(0)

    def compressed(
        self, q: Tensor, k: Tensor, v: Tensor, packing: tuple[Tensor, ...], options: dict[str, Any]
    ) -> Tensor:
        """Compute the op of that name."""
        attend = self.find(PLAIN, *TENSORS)
        _torch.check_flash(q, v)
        folded = _compressed.fold(q, k, v, bool(packing), options["block"], options["stride"])
        out = attend(*folded, softmax_scale=options["sm_scale"], causal=True)
        return _compressed.unfold(alone(out), q)

    def rows(
        self, q: Tensor, k: Tensor, v: Tensor, cu: Tensor, sm_scale: float, max_seqlen: int
    ) -> Tensor:
        """Compute selection_varlen."""
        attend = self.find(VARLEN, *TENSORS, *PACKED)
        _torch.check_flash(q, v)
        if k.shape[0] == 0:
            return torch.zeros_like(q)
        packed, own = heads_as_queries(q, k, v)
        bounds = dict(zip(PACKED, (own, cu, q.shape[1], max_seqlen), strict=True))
        out = attend(*packed, softmax_scale=sm_scale, causal=False, **bounds)
        return alone(out).view(q.shape)

    def cached(
        self, name: str, q: Tensor, k: Tensor, v: Tensor, sm_scale: float, splits: int
    ) -> Tensor:
        """Compute attention of one query [B,HQ,D] against a cache [B,H,S,D]."""
        kv = ("k_cache", "v_cache") if name == CACHED else ("k", "v")
        attend = self.find(name, "q", *kv, "softmax_scale", "num_splits")
        _torch.check_flash(q, v)
        keys, values = k.transpose(1, 2), v.transpose(1, 2)
        options = {"softmax_scale": sm_scale, "num_splits": splits}
        return alone(attend(q.unsqueeze(1), keys, values, **options)).squeeze(1)


FLASH = Flash(FLASH_ATTN, "flash_attn")
_baseline = partial(baseline, name="flash_attn", package=FLASH_ATTN)
_of_a_stretch = partial(of_a_stretch, package=FLASH_ATTN)


@dense("flash_attn", package=FLASH_ATTN)
def flash_attn(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """`flash_attn_func`, and `flash_attn_varlen_func` where sequences are packed."""
    return FLASH.causal(q, k, v, cu, **options)


@_baseline("sliding_window")
def flash_attn_window(
    q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any
) -> Tensor:
    """`flash_attn_func` and `flash_attn_varlen_func` with their window."""
    return FLASH.causal(q, k, v, cu, **options)


@_baseline("compressed")
def flash_attn_compressed(
    q: Tensor, k: Tensor, v: Tensor, *packing: Tensor, **options: Any
) -> Tensor:
    """`flash_attn_func`, the queries of a stride folded into its heads."""
    return FLASH.compressed(q, k, v, packing, options)


@_baseline("selection_varlen")
def flash_attn_rows(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, **options: Any) -> Tensor:
    """`flash_attn_varlen_func`, the H heads of a row as H queries of one head."""
    return FLASH.rows(q, k, v, cu, **options)


@_of_a_stretch("flash_attn")
def flash_attn_cached(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """`flash_attn_with_kvcache`, one query against a cache, in as many splits as it finds best."""
    return FLASH.cached(CACHED, q, k, v, sm_scale, 0)


@_of_a_stretch("flash_attn_unsplit")
def flash_attn_unsplit(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """`flash_attn_with_kvcache`, all keys in one program."""
    return FLASH.cached(CACHED, q, k, v, sm_scale, 1)
