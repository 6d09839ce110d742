"""FlashAttention-4 (`flash_attn.cute`); its `gather_kv_indices` computes no op here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import Packing, baseline
from nsabench.implementations.baselines.decode import whole_cache
from nsabench.implementations.baselines.selection_blocks import chosen_table
from nsabench.implementations.libraries import _calls
from nsabench.implementations.libraries._catalogue import FLASH_ATTN_4
from nsabench.implementations.libraries.flash_attn import PLAIN, VARLEN, Flash, output_only
from nsabench.implementations.torch_attention import TILE

FLASH = Flash(FLASH_ATTN_4, "flash_attn.cute.interface")
SPARSITY = "flash_attn.cute.block_sparsity:BlockSparseTensorsTorch"
MAX_TABLE = 1 << 29  # elements that say which query chose which block
_declared: dict[str, Any] = {"package": FLASH_ATTN_4, "compiled_by": "cutlass"}
FLASH.register("flash_attn_4", **_declared)
whole_cache("flash_attn_4", **_declared)(partial(FLASH.cached, PLAIN, 1))


@whole_cache("flash_attn_4_splits", **_declared)
def flash_attn_4_splits(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """One query against a cache, with as many splits of the keys as it finds best."""
    FLASH.find(PLAIN, "q", "k", "v", "softmax_scale", "num_splits")
    if torch.cuda.get_device_capability(q.device)[0] < 10:
        raise Unsupported("FlashAttention-4 splits the keys of a query on sm_100 and later only")
    return FLASH.cached(PLAIN, 0, q, k, v, sm_scale)


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


@cache
def _chosen_mask(group: int, block_size: int) -> Callable[..., Any]:
    """Return a mask that reads a table of selected blocks, int32 [B,H,T,blocks]."""
    names = ("cutlass", "cutlass.cute", "flash_attn.cute.utils")
    cutlass, cute, utils = map(importlib.import_module, names)

    @cute.jit  # type: ignore[untyped-decorator]
    def chosen(batch: Any, head: Any, m_idx: Any, n_idx: Any, seqlen_info: Any, aux: Any) -> Any:
        table = aux[0]
        at = table[batch[0], head[0] // group, m_idx[0], n_idx[0] // block_size]
        flag = utils.scalar_to_ssa(at, cutlass.Int32)
        return (m_idx >= n_idx) & (flag > utils.scalar_to_ssa(0, cutlass.Int32))

    return chosen  # type: ignore[no-any-return]


def chosen_tiles(
    block_indices: Tensor, t: int, block_size: int, group: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a table of selected blocks int32 [B,H,T,T/block_size], and the selected key tiles.

    These are, for each tile of queries, a count int32 [B,HQ,T/TILE] and indices.
    """
    table = chosen_table(block_indices, t // block_size, torch.int32).contiguous()
    per = TILE // block_size
    tiles = table.unflatten(2, (-1, TILE)).unflatten(4, (-1, per)).amax((3, 5)).tril()
    return table, *_torch.count_tiles(tiles.repeat_interleave(group, 1))


@baseline(
    "selection_blocks",
    "flash_attn_4_mask",
    directions=("forward",),
    kind="general",
    **_declared,
)
def flash_attn_4_mask(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, cu: Packing = None, **options: Any
) -> Tensor:
    """Tiles of 128 keys that none of 128 queries selected are skipped; others have a mask."""
    masked = ("mask_mod", "aux_tensors", "block_sparse_tensors")
    attend = FLASH.find(PLAIN, "q", "k", "v", "softmax_scale", "causal", *masked)
    takes = ("mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx", "block_size")
    sparsity = _calls.find_function(FLASH_ATTN_4, SPARSITY, *takes)
    _torch.check_flash(q, v)
    b, t, hq = q.shape[:3]
    h, size = k.shape[2], options["block_size"]
    if cu is not None:
        raise Unsupported("blocks of packed sequences cross tiles")
    if t % TILE or TILE % size:
        raise Unsupported(f"T must be a multiple of {TILE}, which must be a multiple of block_size")
    elements = b * h * t * (t // size)
    if elements > MAX_TABLE:
        raise Unsupported(f"the table of selected blocks would take {elements} elements")
    table, counts, order = chosen_tiles(blocks, t, size, hq // h)
    # Empty lists of full tiles: without any, its kernel for sm_90 does not compile.
    none = (torch.zeros_like(counts), torch.zeros_like(order))
    given = (counts, order, *none, (TILE, TILE))
    out = attend(
        *(q, k, v),
        softmax_scale=options["sm_scale"],
        causal=False,
        mask_mod=_chosen_mask(hq // h, size),
        aux_tensors=[table],
        block_sparse_tensors=sparsity(**dict(zip(takes, given, strict=True))),
    )
    return output_only(out)
