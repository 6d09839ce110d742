"""Kernels that add up three branches, weighted by gates. The first takes outputs of the branches,
the second their shares: partial outputs of rows whose keys were split among programs."""

from __future__ import annotations

from ....jit.compat import narrow, tl, triton, wait_for_last_launch
from ....jit.merge import combine_shares


@triton.jit
def gated_sum_kernel(
    out_ptr,
    cmp_ptr,
    sel_ptr,
    win_ptr,
    gates_ptr,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Program (batch and query head): add up branches [R,DV] times gates [R,3]; R = B * HQ."""
    row = tl.program_id(0).to(tl.int64)
    dv = tl.arange(0, BLOCK_DV)
    offset = row * DV + dv
    total = tl.zeros([BLOCK_DV], dtype=tl.float32)
    total += tl.load(cmp_ptr + offset, mask=dv < DV).to(tl.float32) * tl.load(gates_ptr + row * 3)
    total += tl.load(sel_ptr + offset, mask=dv < DV).to(tl.float32) * tl.load(
        gates_ptr + row * 3 + 1
    )
    total += tl.load(win_ptr + offset, mask=dv < DV).to(tl.float32) * tl.load(
        gates_ptr + row * 3 + 2
    )
    tl.store(out_ptr + offset, narrow(total, out_ptr.dtype.element_ty), mask=dv < DV)


@triton.jit
def decode_merge_kernel(
    out_ptr,
    gates_ptr,
    cmp_out_ptr,
    cmp_part_ptr,
    cmp_plse_ptr,
    cmp_table_ptr,
    spans_out_ptr,
    spans_part_ptr,
    spans_plse_ptr,
    table_ptr,
    H,
    GROUP,
    cmp_shares,
    spans_slots,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    CMP_BLOCK_S: tl.constexpr,
    CMP_TABLE: tl.constexpr,
    SPANS_BLOCK_S: tl.constexpr,
    SETS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (batch and key head, head of its group): add up the branches, weighted by gates.

    The shares of a branch are merged first. One step merges CMP_BLOCK_S shares of compression or
    SPANS_BLOCK_S shares of another branch; 0 means that no row is split. If CMP_TABLE, rows of
    compression differ in their number of shares, which ``cmp_table_ptr`` holds. SETS more
    branches (selection, window) come from one launch over spans of keys, where branch i is row
    (b * SETS + i) * H + h.
    """
    wait_for_last_launch(PDL)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    offset = row * GROUP + head
    dv = tl.arange(0, BLOCK_DV)
    whole = cmp_out_ptr + offset * DV + dv
    if CMP_TABLE:
        count = tl.minimum(tl.load(cmp_table_ptr + row * 2 + 1), cmp_shares)
        if count > 1:
            first = row * cmp_shares
            branch, _ = combine_shares(
                cmp_part_ptr, cmp_plse_ptr, first, count, head, GROUP, DV, BLOCK_DV, CMP_BLOCK_S
            )
        else:
            branch = tl.load(whole, mask=dv < DV, other=0.0).to(tl.float32)
    elif CMP_BLOCK_S > 0:
        first = row * cmp_shares
        branch, _ = combine_shares(
            cmp_part_ptr, cmp_plse_ptr, first, cmp_shares, head, GROUP, DV, BLOCK_DV, CMP_BLOCK_S
        )
    else:
        branch = tl.load(whole, mask=dv < DV, other=0.0).to(tl.float32)
    total = branch * tl.load(gates_ptr + offset * 3).to(tl.float32)
    for i in tl.static_range(SETS):
        spans_row = row // H * (SETS * H) + i * H + row % H
        whole = spans_out_ptr + (spans_row * GROUP + head) * DV + dv
        if SPANS_BLOCK_S > 0:
            first = tl.load(table_ptr + spans_row * 2).to(tl.int64)
            count = tl.minimum(tl.load(table_ptr + spans_row * 2 + 1), spans_slots)
            if count > 1:
                branch, _ = combine_shares(
                    spans_part_ptr,
                    spans_plse_ptr,
                    first,
                    count,
                    head,
                    GROUP,
                    DV,
                    BLOCK_DV,
                    SPANS_BLOCK_S,
                )
            else:
                branch = tl.load(whole, mask=dv < DV, other=0.0).to(tl.float32)
        else:
            branch = tl.load(whole, mask=dv < DV, other=0.0).to(tl.float32)
        total += branch * tl.load(gates_ptr + offset * 3 + 1 + i).to(tl.float32)
    tl.store(out_ptr + offset * DV + dv, narrow(total, out_ptr.dtype.element_ty), mask=dv < DV)
