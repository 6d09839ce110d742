"""Device functions that every forward kernel shares: tile load, softmax step, split merge.

Logits live in the log2 domain (scaled by ``sm_scale * log2(e)``) so that ``exp2`` can be used; the
LSE that leaves a kernel is the natural logarithm.
"""

from __future__ import annotations

from ._triton_compat import dot, tl, triton


@triton.jit
def load_tile(
    base,
    index,
    cols,
    stride_row,
    stride_col,
    valid,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Rows ``index`` (int64) of a matrix, ``WIDTH`` columns padded with zeros to ``BLOCK``."""
    ptrs = base + index[:, None] * stride_row + cols[None, :] * stride_col
    if MASKED:
        if WIDTH == BLOCK:
            tile = tl.load(ptrs, mask=valid[:, None], other=0.0)
        else:
            tile = tl.load(ptrs, mask=valid[:, None] & (cols[None, :] < WIDTH), other=0.0)
    else:
        if WIDTH == BLOCK:
            tile = tl.load(ptrs)
        else:
            tile = tl.load(ptrs, mask=cols[None, :] < WIDTH, other=0.0)
    return tile


@triton.jit
def softmax_step(
    q,
    k,
    v,
    valid,
    row_max,
    row_sum,
    acc,
    scale_log2,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One online-softmax update with a tile of keys; at least one key of the tile is valid."""
    s = tl.zeros([q.shape[0], k.shape[0]], dtype=tl.float32)
    s = dot(q, tl.trans(k), s, PRECISION) * scale_log2
    if MASKED:
        s = tl.where(valid[None, :], s, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(s, 1))
    p = tl.exp2(s - new_max[:, None])
    alpha = tl.exp2(row_max - new_max)
    row_sum = row_sum * alpha + tl.sum(p, 1)
    acc = acc * alpha[:, None]
    acc = dot(p.to(v.dtype), v, acc, PRECISION)
    return new_max, row_sum, acc


@triton.jit
def store_row(
    out_ptr,
    lse_ptr,
    acc,
    row_max,
    row_sum,
    first_head,
    H,
    DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Write a whole row at ``out_ptr``, ``lse_ptr``; no key at all gives out = 0, lse = -inf."""
    cols = tl.arange(0, BLOCK_DV)
    heads = first_head + tl.arange(0, BLOCK_H)
    heads_ok = heads < H
    some = row_sum > 0
    safe = tl.where(some, row_sum, 1.0)
    out = acc / safe[:, None]
    lse = tl.where(some, (row_max + tl.log2(safe)) * 0.6931471805599453, float("-inf"))
    tl.store(
        out_ptr + heads[:, None] * DV + cols[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=heads_ok[:, None] & (cols[None, :] < DV),
    )
    tl.store(lse_ptr + heads, lse, mask=heads_ok)


@triton.jit
def publish_and_merge(
    out_ptr,
    lse_ptr,
    part_ptr,
    plse_ptr,
    count_ptr,
    acc,
    row_max,
    row_sum,
    first_slot,
    slot,
    n_slots,
    first_head,
    H,
    DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    MERGE_H: tl.constexpr,
    MERGE_S: tl.constexpr,
):
    """Store this program's share of a row; the last program to arrive merges all shares.

    ``out_ptr`` and ``lse_ptr`` point at the row. ``part_ptr`` fp32 [slots, H, DV] and ``plse_ptr``
    fp32 [slots, H] (log2) are the workspace; the row owns ``n_slots`` of them from ``first_slot``
    on, none of them empty. The merge takes ``MERGE_S`` slots and ``MERGE_H`` heads at a time, in
    the order of the slots, so its result does not depend on who arrives last. The counter is zero
    before and after.
    """
    cols = tl.arange(0, BLOCK_DV)
    heads = first_head + tl.arange(0, BLOCK_H)
    heads_ok = heads < H
    here = (first_slot + slot) * H
    tl.store(
        part_ptr + (here + heads)[:, None] * DV + cols[None, :],
        acc / row_sum[:, None],
        mask=heads_ok[:, None] & (cols[None, :] < DV),
    )
    tl.store(plse_ptr + here + heads, row_max + tl.log2(row_sum), mask=heads_ok)
    # All threads' stores come before the one thread that does the atomic; acq_rel orders them
    # for the program that sees the full count.
    tl.debug_barrier()
    arrived = tl.atomic_add(count_ptr, 1, sem="acq_rel")
    if arrived == n_slots - 1:
        tl.debug_barrier()
        slots = tl.arange(0, MERGE_S)
        for h0 in range(first_head, tl.minimum(first_head + BLOCK_H, H), MERGE_H):
            h = h0 + tl.arange(0, MERGE_H)
            h_ok = h < H
            row0 = first_slot * H + h
            top = tl.load(plse_ptr + row0, mask=h_ok, other=0.0, cache_modifier=".cg")
            total = tl.zeros([MERGE_H], dtype=tl.float32)
            merged = tl.zeros([MERGE_H, BLOCK_DV], dtype=tl.float32)
            for s0 in range(0, n_slots, MERGE_S):
                live = (s0 + slots < n_slots)[:, None] & h_ok[None, :]
                row = row0[None, :] + (s0 + slots)[:, None] * H
                lses = tl.load(plse_ptr + row, mask=live, other=float("-inf"), cache_modifier=".cg")
                parts = tl.load(
                    part_ptr + row[:, :, None] * DV + cols[None, None, :],
                    mask=live[:, :, None] & (cols[None, None, :] < DV),
                    other=0.0,
                    cache_modifier=".cg",
                )
                new_top = tl.maximum(top, tl.max(lses, 0))
                old = tl.exp2(top - new_top)
                weight = tl.exp2(lses - new_top[None, :])
                merged = merged * old[:, None] + tl.sum(parts * weight[:, :, None], 0)
                total = total * old + tl.sum(weight, 0)
                top = new_top
            total = tl.where(h_ok, total, 1.0)
            tl.store(
                out_ptr + h[:, None] * DV + cols[None, :],
                (merged / total[:, None]).to(out_ptr.dtype.element_ty),
                mask=h_ok[:, None] & (cols[None, :] < DV),
            )
            tl.store(lse_ptr + h, (top + tl.log2(total)) * 0.6931471805599453, mask=h_ok)
        tl.store(count_ptr, 0)
