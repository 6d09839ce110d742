"""FlashAttention-4 (`flash_attn.cute`); its `gather_kv_indices` computes no op here."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import baseline
from nsabench.implementations.baselines.decode import whole_cache
from nsabench.implementations.libraries import _calls
from nsabench.implementations.libraries.flash_attn import PLAIN, VARLEN, Flash, output_only
from nsabench.registry import Package

FLASH_ATTN_4 = Package("flash-attn-4", "BSD-3-Clause", "--pre 'flash-attn-4[cu13]'")
FLASH = Flash(FLASH_ATTN_4, "flash_attn.cute.interface")
_declared: dict[str, Any] = {"package": FLASH_ATTN_4, "compiled_by": "cutlass"}
FLASH.register("flash_attn_4", **_declared)
whole_cache("flash_attn_4", **_declared)(partial(FLASH.cached, PLAIN, 1))


@_torch.memoised(8)
def _all_long(rows: int, keys: int, device: torch.device) -> Tensor:
    return torch.full((rows,), keys, dtype=torch.int32, device=device)


@baseline("decode_selected", "flash_attn_4_pages", **_declared)
def flash_attn_4_pages(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, block_size: int, sm_scale: float
) -> Tensor:
    """The selected blocks as pages, one sequence a KV head."""
    takes = ("q", "k", "v", "seqused_k", "page_table", "softmax_scale")
    attend = FLASH.find(VARLEN, *takes)
    _torch.check_flash(q, v)
    b, h, s, d = k.shape
    n = ranges.shape[2]
    if not _calls.every_block_is_whole(s, block_size, n):
        raise Unsupported("a partial block is not a page")
    first = _calls.first_of_heads(b * h, s // block_size, q.device).view(b, h, 1)
    out = attend(
        q.view(b * h, 1, -1, d),
        *(x.view(-1, block_size, 1, d) for x in (k, v)),
        seqused_k=_all_long(b * h, n * block_size, q.device),
        page_table=(ranges[..., 0] // block_size + first).view(b * h, -1),
        softmax_scale=sm_scale,
    )
    return output_only(out).view(q.shape)
