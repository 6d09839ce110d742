"""Attention to keys of a paged cache, whose block table names the page of each key."""

from __future__ import annotations

from .compat import dot, tl, triton
from .tiles import late, load_tile, softmax_update

NOT_THERE = tl.constexpr(-1.0e30)
"""The log2 logit of an absent key. If all keys of a tile are absent, -inf would give NaN."""


@triton.jit
def attend_paged_tile(
    q,
    now,
    k_base,
    v_base,
    table,
    n_pages,
    key,
    valid,
    k_sp,
    k_sl,
    v_sp,
    v_sl,
    row_max,
    sums,
    acc,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    PAGE: tl.constexpr,
    LATE: tl.constexpr,
):
    """Do ``attend_tile`` for positions ``key`` (int32) of a batch entry with pages ``table``.

    A key is absent if its page is outside 0 .. n_pages - 1. It is not read: its logit is NOT_THERE,
    and its value 0. If all keys of a row are absent, its maximum is NOT_THERE and its output 0.
    """
    page = tl.load(table + (key // PAGE), mask=valid, other=-1)
    there = (page >= 0) & (page < n_pages)
    page = page.to(tl.int64)
    inside = (key % PAGE).to(tl.int64)
    k_page = k_base + (page * k_sp)[:, None]
    v_page = v_base + (page * v_sp)[:, None]
    k = load_tile(k_page, inside, k_sl, there, D, BLOCK_D, True)
    v = load_tile(v_page, inside, v_sl, there, DV, BLOCK_DV, True)
    s = tl.zeros([q.shape[0], k.shape[0]], dtype=tl.float32)
    s = dot(late(q, now, LATE), tl.trans(k), s) * scale_log2
    s = tl.where(there[None, :], s, NOT_THERE)
    # Lanes after the last key get weight 0, even if all keys are absent.
    s = tl.where(valid[None, :], s, float("-inf"))
    return softmax_update(s, v, row_max, sums, acc)
