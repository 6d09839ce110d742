"""The kernel of ``selection_varlen``."""

from __future__ import annotations

from ...jit.compat import start_next_launch, tl, triton
from ...jit.tiles import late, load_tile, softmax_step, store_row, store_share


@triton.jit
def find_row(cu_ptr, item, N, chunk, total, BLOCK: tl.constexpr, COARSE: tl.constexpr):
    """Return the last row whose first work item is <= ``item`` (-1: none), and where its keys begin
    and end."""
    first = 0
    if COARSE > 1:
        index = tl.arange(0, COARSE) * BLOCK
        cu = tl.load(cu_ptr + index.to(tl.int64), mask=index < N, other=0)
        start = tl.minimum(tl.maximum(cu, 0), total) // chunk + index
        hits = tl.sum(((start <= item) & (index < N)).to(tl.int32), 0)
        first = tl.maximum(hits - 1, 0) * BLOCK
    index = first + tl.arange(0, BLOCK)
    # Load both ends of every row at once, since a dependent load would cost a round trip.
    low = tl.load(cu_ptr + index.to(tl.int64), mask=index < N, other=0)
    high = tl.load(cu_ptr + (index + 1).to(tl.int64), mask=index < N, other=0)
    low = tl.minimum(tl.maximum(low, 0), total)
    high = tl.minimum(tl.maximum(high, low), total)
    hits = tl.sum(((low // chunk + index <= item) & (index < N)).to(tl.int32), 0)
    row = first + hits - 1
    begin = tl.sum(tl.where(index == row, low, 0), 0)
    end = tl.sum(tl.where(index == row, high, 0), 0)
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
    k_sl,
    v_sl,
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
):
    """Program (work item, head tile): attend to the item's keys. If WHOLE, an item is a row.
    Otherwise, row n begins with item cu[n] // chunk + n, and may have several items."""
    start_next_launch(PDL)
    item = tl.program_id(0)
    if WHOLE:
        low = tl.load(cu_ptr + item.to(tl.int64))
        high = tl.load(cu_ptr + (item + 1).to(tl.int64))
        begin = tl.minimum(tl.maximum(low, 0), total)
        end = tl.minimum(tl.maximum(high, begin), total)
        row = item
        first_item = item
        share = end - begin
        n_parts = item * 0 + 1
    else:
        row, begin, end = find_row(cu_ptr, item, N, chunk, total, BLOCK_N, COARSE)
        length = end - begin
        first_item = begin // chunk + row
        n_parts = tl.cdiv(length, chunk)
        # Make items equal. Otherwise, a row of just over ``chunk`` keys has an item of a few keys.
        share = tl.cdiv(tl.cdiv(length, tl.maximum(n_parts, 1)), BLOCK_L) * BLOCK_L
        n_parts = tl.cdiv(length, tl.maximum(share, 1))
    n = row.to(tl.int64)
    part = item - first_item
    # part < 0 happens only if cu_seqlens decreases.
    if (part >= 0) & (part < tl.maximum(n_parts, 1)):
        head0 = tl.program_id(1) * BLOCK_H
        heads = head0 + tl.arange(0, BLOCK_H)
        heads_ok = heads < H
        lo = begin + part * share
        hi = tl.minimum(lo + share, end)
        row_max = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
        sums = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
        acc = tl.zeros([BLOCK_H, BLOCK_DV], dtype=tl.float32)
        q = load_tile(q_ptr + n * q_sn, heads.to(tl.int64), q_sh, heads_ok, D, BLOCK_D, True)
        for start in range(lo, hi, BLOCK_L):
            pos = start + tl.arange(0, BLOCK_L)
            now = start >= lo
            offset = pos.to(tl.int64)
            valid = pos < hi
            k = load_tile(k_ptr, offset, k_sl, valid, D, BLOCK_D, True)
            v = load_tile(v_ptr, offset, v_sl, valid, DV, BLOCK_DV, True)
            row_max, sums, acc = softmax_step(
                late(q, now, LATE), k, v, valid, row_max, sums, acc, scale_log2, True
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
                store_share(part_ptr, plse_ptr, slot, acc, row_max, row_sum, head0, H, DV)
            else:
                store_row(out_row, lse_row, acc, row_max, row_sum, head0, H, DV)
        else:
            store_row(out_row, lse_row, acc, row_max, row_sum, head0, H, DV)
