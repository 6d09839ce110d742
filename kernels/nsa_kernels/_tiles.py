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
    out_ptrs,
    lse_ptrs,
    acc,
    row_max,
    row_sum,
    heads_ok,
    cols,
    DV: tl.constexpr,
):
    """Write the result of a whole row; no key at all gives out = 0 and lse = -inf."""
    some = row_sum > 0
    safe = tl.where(some, row_sum, 1.0)
    out = acc / safe[:, None]
    lse = tl.where(some, (row_max + tl.log2(safe)) * 0.6931471805599453, float("-inf"))
    tl.store(
        out_ptrs,
        out.to(out_ptrs.dtype.element_ty),
        mask=heads_ok[:, None] & (cols[None, :] < DV),
    )
    tl.store(lse_ptrs, lse, mask=heads_ok)


@triton.jit
def publish_and_merge(
    out_ptrs,
    lse_ptrs,
    part_ptr,
    plse_ptr,
    count_ptr,
    acc,
    row_max,
    row_sum,
    first_slot,
    slot,
    n_slots,
    heads,
    heads_ok,
    cols,
    H,
    DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Store this program's share of a row; the last program to arrive merges all shares.

    ``part_ptr`` fp32 [slots, H, DV] and ``plse_ptr`` fp32 [slots, H] (log2) are the workspace, the
    row owns slots ``first_slot`` to ``first_slot + n_slots``, none of them empty. The merge
    runs over the slots in order, so its result does not depend on who arrives last. The counter is
    zero before and after.
    """
    keep = heads_ok[:, None] & (cols[None, :] < DV)
    here = (first_slot + slot) * H
    tl.store(
        part_ptr + (here + heads)[:, None] * DV + cols[None, :],
        acc / row_sum[:, None],
        mask=keep,
    )
    tl.store(plse_ptr + here + heads, row_max + tl.log2(row_sum), mask=heads_ok)
    # All threads' stores come before the one thread that does the atomic; acq_rel orders them
    # for the program that sees the full count.
    tl.debug_barrier()
    arrived = tl.atomic_add(count_ptr, 1, sem="acq_rel")
    if arrived == n_slots - 1:
        tl.debug_barrier()
        row0 = first_slot * H + heads
        end = row0 + n_slots * H
        top = tl.load(plse_ptr + row0, mask=heads_ok, other=0.0, cache_modifier=".cg")
        total = tl.zeros([BLOCK_H], dtype=tl.float32)
        merged = tl.zeros([BLOCK_H, BLOCK_DV], dtype=tl.float32)
        for j0 in range(0, n_slots, 4):
            for u in tl.static_range(4):
                row = row0 + (j0 + u) * H
                live = heads_ok & (row < end)
                lse_j = tl.load(
                    plse_ptr + row, mask=live, other=float("-inf"), cache_modifier=".cg"
                )
                part = tl.load(
                    part_ptr + row[:, None] * DV + cols[None, :],
                    mask=live[:, None] & (cols[None, :] < DV),
                    other=0.0,
                    cache_modifier=".cg",
                )
                new_top = tl.maximum(top, lse_j)
                old = tl.exp2(top - new_top)
                new = tl.exp2(lse_j - new_top)
                merged = merged * old[:, None] + part * new[:, None]
                total = total * old + new
                top = new_top
        total = tl.where(heads_ok, total, 1.0)
        tl.store(out_ptrs, (merged / total[:, None]).to(out_ptrs.dtype.element_ty), mask=keep)
        tl.store(lse_ptrs, (top + tl.log2(total)) * 0.6931471805599453, mask=heads_ok)
        tl.store(count_ptr, 0)
