"""Merge shares, the partial results of programs that each took a part of a row's keys. They are
merged in the order of their slots in memory, so timing changes no result."""

from __future__ import annotations

from .compat import narrow, tl, triton, wait_for_last_launch
from .tiles import natural

NOT_THERE = tl.constexpr(-1.0e30)
"""The log2 logit of an absent key, whose page is not in the pool. If all keys of a tile are absent,
-inf would give NaN."""


@triton.jit
def merge_shares(
    out_ptr,
    lse_ptr,
    part_ptr,
    plse_ptr,
    first_slot,
    n_slots,
    offset,
    h,
    H,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_S: tl.constexpr,
    PAGED: tl.constexpr,
):
    """Merge the shares of head ``h`` of a row, and store the result at ``offset``. If PAGED, a
    row whose keys are all absent (on no page) gets an LSE of -inf."""
    cols = tl.arange(0, BLOCK_DV)
    slots = tl.arange(0, BLOCK_S)
    top = float("-inf")
    total = 0.0
    merged = tl.zeros([BLOCK_DV], dtype=tl.float32)
    for s0 in range(0, n_slots, BLOCK_S):
        live = s0 + slots < n_slots
        row = (first_slot + s0 + slots) * H + h
        lses = tl.load(plse_ptr + row, mask=live, other=float("-inf"))
        parts = tl.load(
            part_ptr + row[:, None] * DV + cols[None, :],
            mask=live[:, None] & (cols[None, :] < DV),
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(lses, 0))
        old = tl.exp2(top - new_top)
        weight = tl.exp2(lses - new_top)
        merged = merged * old + tl.sum(parts * weight[:, None], 0)
        total = total * old + tl.sum(weight, 0)
        top = new_top
    out = narrow(merged / total, out_ptr.dtype.element_ty)
    tl.store(out_ptr + offset * DV + cols, out, mask=cols < DV)
    lse = top + tl.log2(total)
    if PAGED:
        lse = tl.where(lse > NOT_THERE / 2, lse, float("-inf"))
    tl.store(lse_ptr + offset, natural(lse))


@triton.jit
def merge_kernel(
    out_ptr,
    lse_ptr,
    part_ptr,
    plse_ptr,
    table_ptr,
    H,
    n_rows,
    n_slots,
    slots,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_S: tl.constexpr,
    ROWS: tl.constexpr,
    TABLE: tl.constexpr,
    PAGED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (rows, head): merge the shares of ROWS rows, or without TABLE of one row, which has
    ``n_slots`` shares. The table has the first slot and the number of shares of each row. A row of
    at most one share is already in ``out``."""
    wait_for_last_launch(PDL)
    h = tl.program_id(1)
    if TABLE:
        row0 = tl.program_id(0).to(tl.int64) * ROWS
        rows = row0 + tl.arange(0, ROWS)
        # If cu_seqlens is malformed, the table has arbitrary values: stay within the workspace.
        counts = tl.load(table_ptr + rows * 2 + 1, mask=rows < n_rows, other=0)
        counts = tl.minimum(counts, slots)
        if tl.max(counts, 0) > 1:
            for i in range(ROWS):
                row = row0 + i
                count = tl.sum(tl.where(rows == row, counts, 0), 0)
                if count > 1:
                    first = tl.load(table_ptr + row * 2)
                    first = tl.maximum(tl.minimum(first, slots - count), 0).to(tl.int64)
                    merge_shares(
                        out_ptr,
                        lse_ptr,
                        part_ptr,
                        plse_ptr,
                        first,
                        count,
                        row * H + h,
                        h,
                        H,
                        DV,
                        BLOCK_DV,
                        BLOCK_S,
                        PAGED,
                    )
    else:
        only = tl.program_id(0).to(tl.int64)
        merge_shares(
            out_ptr,
            lse_ptr,
            part_ptr,
            plse_ptr,
            only * n_slots,
            n_slots,
            only * H + h,
            h,
            H,
            DV,
            BLOCK_DV,
            BLOCK_S,
            PAGED,
        )


@triton.jit
def sum_kernel(parts_ptr, dk_ptr, dv_ptr, shares, share_stride, k_numel, TILE: tl.constexpr):
    """Program (TILE elements of dk, followed by dv): add up their shares, in order."""
    offset = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = offset < share_stride
    total = tl.zeros([TILE], dtype=tl.float32)
    for _ in range(shares):
        total += tl.load(parts_ptr + offset, mask=inside, other=0.0)
        parts_ptr += share_stride
    total = narrow(total, dk_ptr.dtype.element_ty)
    tl.store(dk_ptr + offset, total, mask=offset < k_numel)
    tl.store(dv_ptr + offset - k_numel, total, mask=inside & (offset >= k_numel))


@triton.jit
def clear_kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.zeros([BLOCK], x_ptr.dtype.element_ty), mask=at < n)
