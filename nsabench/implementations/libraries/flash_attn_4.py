"""FlashAttention-4 (`flash_attn.cute`, written in CuTe DSL): dense, with a window, against a cache,
over pages, and under a mask with block-sparse tensors.

Its gathered keys (`gather_kv_indices`) are for absorbed multi-head latent attention on sm_100, and
so no selection of an op here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines import compressed as _compressed
from nsabench.implementations.baselines.causal_attention import dense
from nsabench.implementations.baselines.decode_branches import of_a_stretch
from nsabench.implementations.baselines.selection_varlen import every
from nsabench.implementations.libraries._calls import function
from nsabench.implementations.libraries._pages import every_block_is_whole, pages_of_blocks
from nsabench.implementations.torch_attention.flash import check_flash
from nsabench.implementations.torch_attention.memoised import memoised
from nsabench.packages.catalogue import FLASH_ATTN_4

PLAIN = "flash_attn.cute.interface:flash_attn_func"
VARLEN = "flash_attn.cute.interface:flash_attn_varlen_func"
SPARSITY = "flash_attn.cute.block_sparsity:BlockSparseTensorsTorch"
TENSORS = ("q", "k", "v", "softmax_scale", "causal")
PACKED = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
CACHED = ("q", "k", "v", "softmax_scale", "num_splits")
TILE = 128  # queries and keys of a tile of the block-sparse form
MAX_TABLE = 1 << 29  # elements that say which query chose which block


def _alone(returned: Any) -> Tensor:
    """The output; versions differ in whether the log-sum-exp comes with it."""
    out: Tensor = returned[0] if isinstance(returned, tuple) else returned
    return out


def causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None,
    sm_scale: float,
    max_seqlen: int,
    window: int = 0,
) -> Tensor:
    """Causal attention [B,T,HQ,D]; window: keys a query sees, 0 for all. Packed is B = 1."""
    options: dict[str, Any] = {"softmax_scale": sm_scale, "causal": True}
    if window:
        options["window_size"] = (window - 1, 0)
    extra = ("window_size",) if window else ()
    if cu_seqlens is None:
        attend = function(FLASH_ATTN_4, PLAIN, *TENSORS, *extra)
        check_flash(q, v)
        return _alone(attend(q, k, v, **options))
    attend = function(FLASH_ATTN_4, VARLEN, *TENSORS, *PACKED, *extra)
    check_flash(q, v)
    options |= dict(zip(PACKED, (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen), strict=True))
    return _alone(attend(q[0], k[0], v[0], **options)).unsqueeze(0)


@dense("flash_attn_4", package=FLASH_ATTN_4, compiled_by="cutlass")
def flash_attn_4(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """`flash_attn_func`, and `flash_attn_varlen_func` where sequences are packed."""
    return causal(q, k, v, cu_seqlens, sm_scale, max_seqlen)


@implementation(
    op="sliding_window",
    name="flash_attn_4",
    role="baseline",
    devices=("cuda",),
    package=FLASH_ATTN_4,
    compiled_by="cutlass",
)
def flash_attn_4_window(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    window: int,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """The same with its window."""
    return causal(q, k, v, cu_seqlens, sm_scale, max_seqlen, window)


@implementation(
    op="compressed",
    name="flash_attn_4",
    role="baseline",
    devices=("cuda",),
    package=FLASH_ATTN_4,
    compiled_by="cutlass",
)
def flash_attn_4_compressed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    cu_keys: Tensor | None = None,
    *,
    block: int,
    stride: int,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """`flash_attn_func`, the queries of a stride folded into its heads."""
    attend = function(FLASH_ATTN_4, PLAIN, *TENSORS)
    check_flash(q, v)
    folded = _compressed.fold(q, k, v, cu_seqlens is not None, block, stride)
    return _compressed.unfold(_alone(attend(*folded, softmax_scale=sm_scale, causal=True)), q)


@implementation(
    op="selection_varlen",
    name="flash_attn_4",
    role="baseline",
    devices=("cuda",),
    package=FLASH_ATTN_4,
    compiled_by="cutlass",
)
def flash_attn_4_rows(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, *, sm_scale: float, max_seqlen: int
) -> Tensor:
    """`flash_attn_varlen_func`, the H heads of a row as H queries of one head."""
    attend = function(FLASH_ATTN_4, VARLEN, *TENSORS, *PACKED)
    check_flash(q, v)
    rows, heads, width = q.shape
    if k.shape[0] == 0:
        return torch.zeros_like(q)
    bounds = (every(heads, rows, q.device), cu_seqlens, heads, max_seqlen)
    out = attend(
        q.reshape(rows * heads, 1, width),
        k.unsqueeze(1),
        v.unsqueeze(1),
        softmax_scale=sm_scale,
        causal=False,
        **dict(zip(PACKED, bounds, strict=True)),
    )
    return _alone(out).view(rows, heads, width)


def _cached(q: Tensor, k: Tensor, v: Tensor, sm_scale: float, splits: int) -> Tensor:
    attend = function(FLASH_ATTN_4, PLAIN, *CACHED)
    check_flash(q, v)
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    out = attend(q.unsqueeze(1), keys, values, softmax_scale=sm_scale, num_splits=splits)
    return _alone(out).squeeze(1)


@of_a_stretch("flash_attn_4", "cuda", package=FLASH_ATTN_4, compiled_by="cutlass")
def flash_attn_4_cached(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """One query against a cache, all keys in one program."""
    return _cached(q, k, v, sm_scale, 1)


@of_a_stretch("flash_attn_4_splits", "cuda", package=FLASH_ATTN_4, compiled_by="cutlass")
def flash_attn_4_splits(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """The same, the keys split over as many programs as it finds best."""
    function(FLASH_ATTN_4, PLAIN, *CACHED)
    if torch.cuda.get_device_capability(q.device)[0] < 10:
        raise Unsupported("FlashAttention-4 splits the keys of a query on sm_100 and later only")
    return _cached(q, k, v, sm_scale, 0)


@memoised(8)
def _all_long(rows: int, keys: int, device: torch.device) -> Tensor:
    return torch.full((rows,), keys, dtype=torch.int32, device=device)


@implementation(
    op="decode_selected",
    name="flash_attn_4_pages",
    role="baseline",
    devices=("cuda",),
    package=FLASH_ATTN_4,
    compiled_by="cutlass",
)
def flash_attn_4_pages(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, block_size: int, sm_scale: float
) -> Tensor:
    """The chosen blocks as the pages of a sequence a KV head."""
    takes = ("q", "k", "v", "seqused_k", "page_table", "softmax_scale")
    attend = function(FLASH_ATTN_4, VARLEN, *takes)
    check_flash(q, v)
    b, h, s, d = k.shape
    if not every_block_is_whole(s, block_size, ranges.shape[2]):
        raise Unsupported("a block that is cut off, or is none, is no page here")
    table = pages_of_blocks(ranges, s // block_size, block_size).view(b * h, -1)
    out = attend(
        q.view(b * h, 1, -1, d),
        k.view(-1, block_size, 1, d),
        v.view(-1, block_size, 1, d),
        seqused_k=_all_long(b * h, table.shape[1] * block_size, q.device),
        page_table=table,
        softmax_scale=sm_scale,
    )
    return _alone(out).view(q.shape)


@cache
def _chosen_mask(group: int, block_size: int) -> Callable[..., Any]:
    """Whether a query chose the block of a key, from a table int32 [B,H,T,blocks]."""
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
    """Which blocks each query of a key head [B,T,H,S] chose, int32 [B,H,T,T/block_size]; of each
    query head and tile of queries, how many tiles of keys any of its queries chose, [B,HQ,T/TILE],
    and which, first in the last dimension and rising, [B,HQ,T/TILE,T/TILE]."""
    b, _, h, _ = block_indices.shape
    blocks = t // block_size
    chosen = block_indices.transpose(1, 2).long()
    table = torch.zeros(b, h, t, blocks + 1, dtype=torch.int32, device=block_indices.device)
    table.scatter_(-1, chosen.where(chosen >= 0, blocks), 1)
    table = table[..., :blocks].contiguous()
    per = TILE // block_size
    tiles = table.view(b, h, t // TILE, TILE, t // TILE, per).amax((3, 5)).tril()
    tiles = tiles.repeat_interleave(group, 1)
    order = tiles.argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return table, tiles.sum(-1, dtype=torch.int32), order


@implementation(
    op="selection_blocks",
    name="flash_attn_4_mask",
    role="baseline",
    devices=("cuda",),
    directions=("forward",),
    kind="general",
    package=FLASH_ATTN_4,
    compiled_by="cutlass",
)
def flash_attn_4_mask(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> Tensor:
    """`block_sparse_tensors`: tiles of 128 keys that none of 128 queries chose are free; in the
    others a mask reads what was chosen."""
    attend = function(
        FLASH_ATTN_4, PLAIN, *TENSORS, "mask_mod", "aux_tensors", "block_sparse_tensors"
    )
    sparsity = function(
        FLASH_ATTN_4, SPARSITY, *("mask_block_cnt", "mask_block_idx"),
        *("full_block_cnt", "full_block_idx", "block_size"),
    )  # fmt: skip
    check_flash(q, v)
    b, t, hq = q.shape[:3]
    h = k.shape[2]
    if cu_seqlens is not None:
        raise Unsupported("sequences are packed, whose blocks lie across tiles")
    if t % TILE or TILE % block_size:
        raise Unsupported(f"T must be a multiple of {TILE}, and that one of block_size")
    blocks = t // block_size
    if b * h * t * blocks > MAX_TABLE:
        raise Unsupported(f"the table of what was chosen would take {b * h * t * blocks} elements")
    table, counts, order = chosen_tiles(block_indices, t, block_size, hq // h)
    # No tile is free of the mask. Said by none at all, its kernel for sm_90 cannot be compiled.
    sparse = sparsity(
        mask_block_cnt=counts,
        mask_block_idx=order,
        full_block_cnt=torch.zeros_like(counts),
        full_block_idx=torch.zeros_like(order),
        block_size=(TILE, TILE),
    )
    return _alone(
        attend(
            q,
            k,
            v,
            softmax_scale=sm_scale,
            causal=False,
            mask_mod=_chosen_mask(hq // h, block_size),
            aux_tensors=[table],
            block_sparse_tensors=sparse,
        )
    )
