"""``selection_varlen``: rows of unequal length, packed one after the other.

The launch must not depend on the lengths (no host synchronisation), and one long row must not
hold up the others. So the packed keys are cut into work items of at most ``chunk`` keys, and item
``cu_seqlens[n] // chunk + n`` is the first of row ``n``: that is monotone, gives every row at least
``ceil(len / chunk)`` items, and bounds their number by ``N + total // chunk``. A program finds its
row by counting the rows that start at or before its item. Where the caller knows that no row is
much longer than the others, and rows are many, a program takes a whole row: no search, no merge.
"""

from __future__ import annotations

import torch

from ...jit.compat import start_next_launch, tl, triton
from ...jit.tiles import attend_span, load_tile, store_row, store_share
from ...launch import checks as check
from ...launch.shares import merge, workspace
from ..config import Config, check_heads, dependent_launch, varlen_config

ROWS_A_BLOCK = 1024
"""Rows looked at in each of the two steps of the search."""


@triton.jit
def find_row(cu_ptr, cu_s, item, N, chunk, total, BLOCK: tl.constexpr, COARSE: tl.constexpr):
    """The last row whose first work item is <= ``item`` (-1: none), and its keys' bounds."""
    first = 0
    if COARSE > 1:
        at = tl.arange(0, COARSE) * BLOCK
        cu = tl.load(cu_ptr + at.to(tl.int64) * cu_s, mask=at < N, other=0)
        start = tl.minimum(tl.maximum(cu, 0), total) // chunk + at
        hits = tl.sum(((start <= item) & (at < N)).to(tl.int32), 0)
        first = tl.maximum(hits - 1, 0) * BLOCK
    at = first + tl.arange(0, BLOCK)
    # Both ends of every row of the block at once: a second, dependent load would cost a round trip.
    low = tl.load(cu_ptr + at.to(tl.int64) * cu_s, mask=at < N, other=0)
    high = tl.load(cu_ptr + (at + 1).to(tl.int64) * cu_s, mask=at < N, other=0)
    low = tl.minimum(tl.maximum(low, 0), total)
    high = tl.minimum(tl.maximum(high, low), total)
    hits = tl.sum(((low // chunk + at <= item) & (at < N)).to(tl.int32), 0)
    row = first + hits - 1
    begin = tl.sum(tl.where(at == row, low, 0), 0)
    end = tl.sum(tl.where(at == row, high, 0), 0)
    return row, begin, end


@triton.jit
def varlen_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    cu_ptr,
    out_ptr,
    lse_ptr,
    part_ptr,
    plse_ptr,
    table_ptr,
    q_sn,
    q_sh,
    q_sd,
    k_sl,
    k_sd,
    v_sl,
    v_sd,
    cu_s,
    N,
    H,
    total,
    chunk,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_N: tl.constexpr,
    COARSE: tl.constexpr,
    SPLIT: tl.constexpr,
    WHOLE: tl.constexpr,
    LATE: tl.constexpr,
    PDL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (work item, head tile); WHOLE: program (row, head tile)."""
    start_next_launch(PDL)
    item = tl.program_id(0)
    if WHOLE:
        low = tl.load(cu_ptr + item.to(tl.int64) * cu_s)
        high = tl.load(cu_ptr + (item + 1).to(tl.int64) * cu_s)
        begin = tl.minimum(tl.maximum(low, 0), total)
        end = tl.minimum(tl.maximum(high, begin), total)
        row = item
        first_item = item
        share = end - begin
        n_parts = item * 0 + 1
    else:
        row, begin, end = find_row(cu_ptr, cu_s, item, N, chunk, total, BLOCK_N, COARSE)
        length = end - begin
        first_item = begin // chunk + row
        n_parts = tl.cdiv(length, chunk)
        # Equal shares: a row just above the chunk must not leave a tail of a few keys.
        share = tl.cdiv(tl.cdiv(length, tl.maximum(n_parts, 1)), BLOCK_L) * BLOCK_L
        n_parts = tl.cdiv(length, tl.maximum(share, 1))
    n = row.to(tl.int64)
    part = item - first_item
    # part < 0 happens only where cu_seqlens decreases.
    if (part >= 0) & (part < tl.maximum(n_parts, 1)):
        head0 = tl.program_id(1) * BLOCK_H
        heads = head0 + tl.arange(0, BLOCK_H)
        heads_ok = heads < H
        d = tl.arange(0, BLOCK_D)
        lo = begin + part * share
        hi = tl.minimum(lo + share, end)
        row_max = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
        sums = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
        acc = tl.zeros([BLOCK_H, BLOCK_DV], dtype=tl.float32)
        q = load_tile(
            q_ptr + n * q_sn, heads.to(tl.int64), d, q_sh, q_sd, heads_ok, D, BLOCK_D, True
        )
        row_max, sums, acc = attend_span(
            q,
            k_ptr,
            v_ptr,
            lo,
            hi,
            k_sl,
            k_sd,
            v_sl,
            v_sd,
            row_max,
            sums,
            acc,
            scale_log2,
            D,
            DV,
            BLOCK_D,
            BLOCK_DV,
            BLOCK_L,
            True,
            LATE,
            PRECISION,
        )
        row_sum = tl.sum(sums, 1)
        out_row = out_ptr + n * H * DV
        lse_row = lse_ptr + n * H
        if SPLIT:
            if (part == 0) & (head0 == 0):
                tl.store(table_ptr + n * 2, first_item)
                tl.store(table_ptr + n * 2 + 1, n_parts)
            if n_parts > 1:
                slot = item.to(tl.int64)
                store_share(
                    part_ptr, plse_ptr, slot, acc, row_max, row_sum, head0, H, DV, BLOCK_H, BLOCK_DV
                )
            else:
                store_row(out_row, lse_row, acc, row_max, row_sum, head0, H, DV, BLOCK_H, BLOCK_DV)
        else:
            store_row(out_row, lse_row, acc, row_max, row_sum, head0, H, DV, BLOCK_H, BLOCK_DV)


@check.on_its_device
def selection_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    *,
    sm_scale: float | None = None,
    max_seqlen: int | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each row's H queries over that row's slice of the packed keys.

    Args:
        q: [N, H, D], float16, bfloat16 or float32, any strides.
        k: [total, D], same dtype, any strides.
        v: [total, Dv], same dtype, any strides.
        cu_seqlens: int32 [N + 1] on the same device, non-decreasing, each at most total;
            row n owns keys cu_seqlens[n] to cu_seqlens[n + 1]. Its values are never read on the
            host; values outside [0, total] are clamped on the device. If they decrease,
            nothing out of bounds is touched, but what the call returns is undefined.
        sm_scale: factor on q.k; 1/sqrt(D) when None.
        max_seqlen: upper bound of the lengths, when the caller knows one; only a hint for how rows
            are shared out, results do not depend on it being right.
        config: launch configuration; chosen from the shapes when None.

    Returns:
        out [N, H, Dv] in q's dtype and lse [N, H] float32 (natural log), both contiguous; an
        empty row gives out = 0, lse = -inf.

    Raises:
        TypeError: unsupported or mixed dtypes, cu_seqlens not int32.
        ValueError: shapes that do not fit together, head dims outside 16..256, wrong device, an
            input that requires a gradient, a config of another shape.
    """
    check.check_qkv("selection_varlen", q, k, v)
    check.check_no_backward("selection_varlen", q, k, v)
    if not (
        q.dim() == 3
        and k.dim() == v.dim() == 2
        and k.shape[0] == v.shape[0]
        and cu_seqlens.shape == (q.shape[0] + 1,)
        and q.shape[1] >= 1
    ):
        raise ValueError(
            "selection_varlen: expected q [N,H,D], k [total,D], v [total,Dv], cu_seqlens [N+1] "
            f"with H >= 1; got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}, "
            f"{tuple(cu_seqlens.shape)}"
        )
    if cu_seqlens.dtype != torch.int32:
        raise TypeError(f"selection_varlen: cu_seqlens must be int32, got {cu_seqlens.dtype}")
    if cu_seqlens.device != q.device:
        raise ValueError(f"selection_varlen: cu_seqlens is on {cu_seqlens.device}, q on {q.device}")
    n, h, d = q.shape
    total, dv = v.shape
    if total >= 2**31:
        raise ValueError(f"selection_varlen: int32 cu_seqlens cannot address {total} keys")
    out = torch.empty((n, h, dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((n, h), dtype=torch.float32, device=q.device)
    if n == 0:
        return out, lse
    if config is None:
        config = varlen_config(n, h, total, d, dv, max_seqlen, q.dtype, q.device)
    else:
        check_heads("selection_varlen", config, h)
        check.require(
            config.splits == 1 or config.chunk >= 1,
            f"selection_varlen: {config} has no keys a work item",
        )
    whole = config.splits == 1
    items = n if whole else n + total // config.chunk
    split = not whole and total > config.chunk
    part = plse = table = lse
    if split:
        part, plse = workspace(q, items, h, dv)
        table = torch.empty((n, 2), dtype=torch.int32, device=q.device)
    varlen_kernel[(items, config.head_tiles)](
        q,
        k,
        v,
        cu_seqlens,
        out,
        lse,
        part,
        plse,
        table,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        cu_seqlens.stride(0),
        n,
        h,
        total,
        config.chunk,
        check.scale_log2(sm_scale, d),
        **check.head_dims(d, dv),
        BLOCK_H=config.block_h,
        BLOCK_L=config.block_l,
        BLOCK_N=min(max(check.next_power_of_2(n), 16), ROWS_A_BLOCK),
        COARSE=check.next_power_of_2(check.cdiv(n, ROWS_A_BLOCK)),
        SPLIT=split,
        WHOLE=whole,
        LATE=config.late,
        PDL=split and dependent_launch(q.device),
        PRECISION="ieee",
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    if split:
        merge(out, lse, part, plse, table, min(total // config.chunk + 1, 16), items)
    return out, lse
