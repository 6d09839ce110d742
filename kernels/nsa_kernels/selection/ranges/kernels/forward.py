"""The kernel of ``selection_ranges``."""

from __future__ import annotations

from ....jit.compat import dot, start_next_launch, tl, triton
from ....jit.merge import NOT_THERE
from ....jit.sequences import tokens_of
from ....jit.tiles import (
    late,
    load_tile,
    softmax_step,
    softmax_update,
    store_row,
    store_share,
)
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
    PDL: tl.constexpr,
):
    """Program (row (b * S + s) * G + g, split, head tile): attend to a share of the row's keys.

    If LENGTHS, each batch entry has its own number of keys. If PAGE is 0, k is [B,G,S_KV,D].
    Otherwise, k [pages,G,PAGE,D] and v are a pool of pages, and row b of ``pages`` lists the pages
    of entry b.
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
            now = start >= lo
            if PAGE > 0:
                table = pages_ptr + b * p_sb
                # Keys of a page that is not in the pool are absent, and have no weight.
                page = tl.load(table + (key // PAGE), mask=valid, other=-1)
                there = (page >= 0) & (page < n_pages)
                page = page.to(tl.int64)
                inside = (key % PAGE).to(tl.int64)
                k_page = k_base + (page * k_sb)[:, None]
                v_page = v_base + (page * v_sb)[:, None]
                k = load_tile(k_page, inside, k_sl, there, D, BLOCK_D, True)
                v = load_tile(v_page, inside, v_sl, there, DV, BLOCK_DV, True)
                logits = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
                logits = dot(late(q, now, LATE), tl.trans(k), logits) * scale_log2
                logits = tl.where(there[None, :], logits, NOT_THERE)
                # Lanes after the last key get weight 0, even if all keys are absent.
                logits = tl.where(valid[None, :], logits, float("-inf"))
                row_max, sums, acc = softmax_update(logits, v, row_max, sums, acc)
            else:
                offset = key.to(tl.int64)
                k = load_tile(k_base, offset, k_sl, valid, D, BLOCK_D, True)
                v = load_tile(v_base, offset, v_sl, valid, DV, BLOCK_DV, True)
                row_max, sums, acc = softmax_step(
                    late(q, now, LATE), k, v, valid, row_max, sums, acc, scale_log2, True
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
                store_share(part_ptr, plse_ptr, slot, acc, row_max, row_sum, head0, H, DV)
            else:
                store_row(out_row, lse_row, acc, row_max, row_sum, head0, H, DV)
        else:
            store_row(out_row, lse_row, acc, row_max, row_sum, head0, H, DV)
