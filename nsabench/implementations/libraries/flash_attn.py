"""FlashAttention 2 and 4. Version 2 cannot select blocks: its pages have at least 256 keys."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import baseline
from nsabench.implementations.baselines.bands import (
    attend_folded,
    attend_sequences,
    dense_attention,
)
from nsabench.implementations.baselines.decode import whole_cache
from nsabench.implementations.baselines.selection_rows import attend_rows
from nsabench.implementations.libraries import _calls
from nsabench.registry import Package

FLASH_ATTN = Package("flash-attn", "BSD-3-Clause", "flash-attn --no-build-isolation")
FLASH_ATTN_4 = Package("flash-attn-4", "BSD-3-Clause", "--pre 'flash-attn-4[cu13]'")
PLAIN, VARLEN, CACHED = "flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"
PACKED = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


def output_only(returned: Any) -> Tensor:
    # Some versions also return the log-sum-exp.
    return returned[0] if isinstance(returned, tuple) else returned


@dataclass(frozen=True)
class Flash:
    """A FlashAttention package, which is called like `torch_attention.aten_flash`."""

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
        """Attend from q [B,HQ,D] to a cache [B,H,S,D] in `splits` parts; 0: automatic."""
        kv = ("k_cache", "v_cache") if name == CACHED else ("k", "v")
        attend = self.find(name, "q", *kv, "softmax_scale", "num_splits")
        _torch.check_flash(q, v)
        keys, values = k.transpose(1, 2), v.transpose(1, 2)
        options = {"softmax_scale": sm_scale, "num_splits": splits}
        return output_only(attend(q.unsqueeze(1), keys, values, **options)).squeeze(1)

    def register(self, name: str, **declared: Any) -> None:
        sequences = partial(attend_sequences, self)
        dense_attention(name, **declared)(sequences)
        baseline("sliding_window", name, **declared)(sequences)
        baseline("compressed", name, **declared)(partial(attend_folded, self))
        baseline("selection_varlen", name, **declared)(partial(attend_rows, self))


FLASH_2 = Flash(FLASH_ATTN, "flash_attn")
FLASH_2.register("flash_attn", package=FLASH_ATTN)
whole_cache("flash_attn", package=FLASH_ATTN)(partial(FLASH_2.cached, CACHED, 0))

FLASH_4 = Flash(FLASH_ATTN_4, "flash_attn.cute.interface")
_declared: dict[str, Any] = {"package": FLASH_ATTN_4, "compiled_by": "cutlass"}
FLASH_4.register("flash_attn_4", **_declared)
whole_cache("flash_attn_4", **_declared)(partial(FLASH_4.cached, PLAIN, 1))


@_torch.memoised(8)
def _all_long(rows: int, keys: int, device: torch.device) -> Tensor:
    return torch.full((rows,), keys, dtype=torch.int32, device=device)


@baseline("decode_selected", "flash_attn_4_pages", **_declared)
def flash_attn_4_pages(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, **options: Any) -> Tensor:
    """Attend to the selected blocks as pages, with one sequence for each KV head."""
    takes = ("q", "k", "v", "seqused_k", "page_table", "softmax_scale")
    attend = FLASH_4.find(VARLEN, *takes)
    _torch.check_flash(q, v)
    b, h, s, d = k.shape
    n, block_size = ranges.shape[2], options["block_size"]
    if not _calls.every_block_is_whole(s, block_size, n):
        raise Unsupported("the cache ends in a partial block, or has fewer than n_selected blocks")
    first = _calls.first_of_heads(b * h, s // block_size, q.device).view(b, h, 1)
    out = attend(
        q.view(b * h, 1, -1, d),
        *(x.view(-1, block_size, 1, d) for x in (k, v)),
        seqused_k=_all_long(b * h, n * block_size, q.device),
        page_table=(ranges[..., 0] // block_size + first).view(b * h, -1),
        softmax_scale=options["sm_scale"],
    )
    return output_only(out).view(q.shape)
