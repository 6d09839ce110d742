"""FlashAttention-2 by its authors. Its pages of at least 256 keys fit no selection."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import Packing, baseline
from nsabench.implementations.baselines import bands, compressed, selection_varlen
from nsabench.implementations.baselines.causal_attention import dense_attention
from nsabench.implementations.baselines.decode import whole_cache
from nsabench.implementations.libraries import _calls
from nsabench.registry import Package

FLASH_ATTN = Package("flash-attn", "BSD-3-Clause", "flash-attn --no-build-isolation")
PLAIN, VARLEN, CACHED = "flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"
PACKED = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


def output_only(returned: Any) -> Tensor:
    """Return the output alone; some versions also return the log-sum-exp."""
    return returned[0] if isinstance(returned, tuple) else returned


@dataclass(frozen=True)
class Flash:
    """A FlashAttention package, with the call form of `torch_attention.aten_flash`."""

    package: Package
    module: str

    def find(self, name: str, *takes: str) -> Any:
        return _calls.find_function(self.package, f"{self.module}:{name}", *takes)

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu: tuple[Tensor, Tensor] | None,
        longest: tuple[int, int],
        sm_scale: float,
        window: int = 0,
        *,
        causal: bool = True,
    ) -> Tensor:
        options: dict[str, Any] = {"softmax_scale": sm_scale, "causal": causal}
        if window:
            options["window_size"] = (window - 1, 0)
        if cu is not None:
            options |= dict(zip(PACKED, (*cu, *longest), strict=True))
        attend = self.find(PLAIN if cu is None else VARLEN, "q", "k", "v", *options)
        _torch.check_flash(q, v)
        return output_only(attend(q, k, v, **options)) if k.numel() else torch.zeros_like(q)

    def cached(
        self, name: str, splits: int, q: Tensor, k: Tensor, v: Tensor, sm_scale: float
    ) -> Tensor:
        """Attend one query [B,HQ,D] to a cache [B,H,S,D]. splits: of the keys, 0 to suit it."""
        kv = ("k_cache", "v_cache") if name == CACHED else ("k", "v")
        attend = self.find(name, "q", *kv, "softmax_scale", "num_splits")
        _torch.check_flash(q, v)
        keys, values = k.transpose(1, 2), v.transpose(1, 2)
        options = {"softmax_scale": sm_scale, "num_splits": splits}
        return output_only(attend(q.unsqueeze(1), keys, values, **options)).squeeze(1)

    def register(self, name: str, **declared: Any) -> None:
        """Register what all versions compute."""

        @dense_attention(name, **declared)
        @baseline("sliding_window", name, **declared)
        def of_sequences(
            q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any
        ) -> Tensor:
            return bands.attend_sequences(self, q, k, v, cu, **options)

        @baseline("compressed", name, **declared)
        def of_compressed_keys(*tensors: Tensor, **options: Any) -> Tensor:
            return compressed.attend_folded(self, *tensors, **options)

        @baseline("selection_varlen", name, **declared)
        def of_rows(*tensors: Tensor, **options: Any) -> Tensor:
            return selection_varlen.attend_rows(self, *tensors, **options)


FLASH = Flash(FLASH_ATTN, "flash_attn")
FLASH.register("flash_attn", package=FLASH_ATTN)
whole_cache("flash_attn", package=FLASH_ATTN)(partial(FLASH.cached, CACHED, 0))
