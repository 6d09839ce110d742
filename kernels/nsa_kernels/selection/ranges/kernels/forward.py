"""The kernel of ``selection_ranges``."""

from __future__ import annotations

from ....jit.compat import start_next_launch, tl, triton, wait_for_last_launch
from ....jit.lengths import tokens_of
from ....jit.pages import NOT_THERE, attend_paged_tile
from ....jit.tiles import attend_tile, load_tile, store_row, store_share
from .spans import key_of, numbered_spans


@triton.jit
def ranges_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    spans_ptr,
    before_ptr,
    out_ptr,
    lse_ptr,
    part_ptr,
    plse_ptr,
    table_ptr,
    lengths_ptr,
    pages_ptr,
    q_sb,
    q_ss,
    q_sg,
    q_sh,
    k_sb,
    k_sg,
    k_sl,
    v_sb,
    v_sg,
    v_sl,
    r_sb,
    r_ss,
    r_sg,
    r_sn,
    p_sb,
    S,
    G,
    H,
    S_KV,
    n_spans,
    n_pages,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_L: tl.constexpr,
    SPANS: tl.constexpr,
    SEARCH_STEPS: tl.constexpr,
    MIN_SHARE: tl.constexpr,
    SPLIT: tl.constexpr,
    LATE: tl.constexpr,
    LENGTHS: tl.constexpr,
    PAGE: tl.constexpr,
    DEPENDENT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (row (b * S + s) * G + g, split, head tile): attend to a share of the row's keys.

    If DEPENDENT, the launch before may still write the spans, but no other input. If LENGTHS, each
    batch entry has its own number of keys. If PAGE is 0, k is [B,G,S_KV,D]. Otherwise, k
    [pages,G,PAGE,D] and v are a pool of pages, and row b of ``pages`` lists the pages of entry b.
    """
    start_next_launch(PDL)
    r = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    n_splits = tl.num_programs(1)
    g = r % G
    s = (r // G) % S
    b = r // G // S
    if LENGTHS:
        S_KV = tokens_of(lengths_ptr, b, S_KV)
    head0 = tl.program_id(2) * BLOCK_H
    heads = head0 + tl.arange(0, BLOCK_H)
    heads_ok = heads < H
    q = load_tile(
        q_ptr + b * q_sb + s * q_ss + g * q_sg, heads.to(tl.int64), q_sh, heads_ok, D, BLOCK_D, True
    )
    if PAGE > 0:
        k_base = k_ptr + g * k_sg
        v_base = v_ptr + g * v_sg
    else:
        k_base = k_ptr + b * k_sb + g * k_sg
        v_base = v_ptr + b * v_sb + g * v_sg
    spans = spans_ptr + b * r_sb + s * r_ss + g * r_sg
    before = before_ptr + r * (n_spans + 1)
    wait_for_last_launch(DEPENDENT)
    number, stop, shift, total = numbered_spans(
        spans, before, r_sn, n_spans, S_KV, SPANS, SEARCH_STEPS
    )
    tiles = tl.cdiv(total, BLOCK_L)
    # Smaller shares than MIN_SHARE (except the last of a row) cost more to merge than they save.
    chunk = tl.maximum(tl.cdiv(tiles, n_splits) * BLOCK_L, MIN_SHARE)
    n_parts = tl.cdiv(total, chunk)
    lo = split * chunk
    if split < tl.maximum(n_parts, 1):
        hi = tl.minimum(lo + chunk, total)
        row_max = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
        sums = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
        acc = tl.zeros([BLOCK_H, BLOCK_DV], dtype=tl.float32)
        for start in range(lo, hi, BLOCK_L):
            pos = start + tl.arange(0, BLOCK_L)
            valid = pos < hi
            key = key_of(
                pos, valid, spans, before, r_sn, number, stop, shift, n_spans, SEARCH_STEPS
            )
            if PAGE > 0:
                row_max, sums, acc = attend_paged_tile(
                    q,
                    start >= lo,
                    k_base,
                    v_base,
                    pages_ptr + b * p_sb,
                    n_pages,
                    key,
                    valid,
                    k_sb,
                    k_sl,
                    v_sb,
                    v_sl,
                    row_max,
                    sums,
                    acc,
                    scale_log2,
                    D,
                    DV,
                    BLOCK_D,
                    BLOCK_DV,
                    PAGE,
                    LATE,
                )
            else:
                row_max, sums, acc = attend_tile(
                    q,
                    start >= lo,
                    k_base,
                    v_base,
                    key.to(tl.int64),
                    valid,
                    k_sl,
                    v_sl,
                    row_max,
                    sums,
                    acc,
                    scale_log2,
                    D,
                    DV,
                    BLOCK_D,
                    BLOCK_DV,
                    True,
                    LATE,
                )
        row_sum = tl.sum(sums, 1)
        if PAGE > 0:
            # Absent keys (on no page) have the logit NOT_THERE. If all keys of an unsplit row are
            # absent, make row_sum 0, so that out = 0 and lse = -inf. A share must keep row_sum, by
            # which store_share divides. If all its keys are absent, it has no weight in the merge.
            some = row_max > NOT_THERE
            if SPLIT:
                some = some | (n_parts > 1)
            row_sum = tl.where(some, row_sum, 0.0)
        out_row = out_ptr + r * H * DV
        lse_row = lse_ptr + r * H
        if SPLIT:
            slot = r * n_splits + split
            if (split == 0) & (head0 == 0):
                tl.store(table_ptr + r * 2, slot.to(tl.int32))
                tl.store(table_ptr + r * 2 + 1, n_parts)
            if n_parts > 1:
                store_share(
                    part_ptr, plse_ptr, slot, acc, row_max, row_sum, head0, H, DV, BLOCK_H, BLOCK_DV
                )
            else:
                store_row(out_row, lse_row, acc, row_max, row_sum, head0, H, DV, BLOCK_H, BLOCK_DV)
        else:
            store_row(out_row, lse_row, acc, row_max, row_sum, head0, H, DV, BLOCK_H, BLOCK_DV)
