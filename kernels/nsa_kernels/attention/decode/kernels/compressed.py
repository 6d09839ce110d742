"""The kernel of the compression branch for one token, which can also store the logits."""

from __future__ import annotations

from ....jit.compat import dot, start_next_launch, tl, triton
from ....jit.sequences import complete_keys
from ....jit.tiles import late, load_tile, softmax_update, store_row, store_share


@triton.jit
def decode_compressed_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    logits_ptr,
    out_ptr,
    lse_ptr,
    part_ptr,
    plse_ptr,
    table_ptr,
    lengths_ptr,
    q_sn,
    q_sh,
    k_sn,
    k_sl,
    v_sn,
    v_sl,
    H,
    L,
    padded,
    chunk,
    rows_each,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_L: tl.constexpr,
    SPLIT: tl.constexpr,
    LATE: tl.constexpr,
    LOGITS: tl.constexpr,
    LENGTHS: tl.constexpr,
    MIN_SHARE: tl.constexpr,
    BLOCK: tl.constexpr,
    STRIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (row, share of its keys, head tile): attend to ``chunk`` keys from ``share * chunk``.

    If LOGITS, store the logits, fp32 [rows, H, padded], times scale and log2(e). If LENGTHS, each
    batch entry has its own number of tokens and ``rows_each`` rows, which see the keys that end
    within these tokens. Then ``chunk`` is computed here, and if SPLIT, ``table`` gets the slot of a
    row's first share and the number of shares that have keys (``launch/shares.py``).
    """
    start_next_launch(PDL)
    n = tl.program_id(0).to(tl.int64)
    share = tl.program_id(1)
    head0 = tl.program_id(2) * BLOCK_H
    heads = head0 + tl.arange(0, BLOCK_H)
    heads_ok = heads < H
    if LENGTHS:
        L = complete_keys(tl.load(lengths_ptr + n // rows_each), L, BLOCK, STRIDE)
        chunk = tl.cdiv(tl.cdiv(L, BLOCK_L), tl.num_programs(1)) * BLOCK_L
        chunk = tl.maximum(chunk, MIN_SHARE)
    lo = share * chunk
    hi = tl.minimum(lo + chunk, L)
    row_max = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
    sums = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_DV], dtype=tl.float32)
    q = load_tile(q_ptr + n * q_sn, heads.to(tl.int64), q_sh, heads_ok, D, BLOCK_D, True)
    if LOGITS:
        logits = logits_ptr + (n * H + heads)[:, None] * padded
    for start in range(lo, hi, BLOCK_L):
        pos = start + tl.arange(0, BLOCK_L)
        valid = pos < hi
        offset = pos.to(tl.int64)
        k = load_tile(k_ptr + n * k_sn, offset, k_sl, valid, D, BLOCK_D, True)
        v = load_tile(v_ptr + n * v_sn, offset, v_sl, valid, DV, BLOCK_DV, True)
        s = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
        s = dot(late(q, start >= lo, LATE), tl.trans(k), s) * scale_log2
        if LOGITS:
            # Mask by ``padded``, a multiple of 16, and not by ``hi``: then the mask does not change
            # within a vector that is stored.
            tl.store(logits + offset[None, :], s, mask=heads_ok[:, None] & (pos < padded)[None, :])
        s = tl.where(valid[None, :], s, float("-inf"))
        row_max, sums, acc = softmax_update(s, v, row_max, sums, acc)
    row_sum = tl.sum(sums, 1)
    out_row = out_ptr + n * H * DV
    lse_row = lse_ptr + n * H
    if SPLIT:
        slot = n * tl.num_programs(1) + share
        if LENGTHS:
            parts = tl.cdiv(L, chunk)
            if (share == 0) & (head0 == 0):
                tl.store(table_ptr + n * 2, slot.to(tl.int32))
                tl.store(table_ptr + n * 2 + 1, parts)
            if parts > 1:
                if share < parts:
                    store_share(part_ptr, plse_ptr, slot, acc, row_max, row_sum, head0, H, DV)
            elif share == 0:
                store_row(out_row, lse_row, acc, row_max, row_sum, head0, H, DV)
        else:
            store_share(part_ptr, plse_ptr, slot, acc, row_max, row_sum, head0, H, DV)
    else:
        store_row(out_row, lse_row, acc, row_max, row_sum, head0, H, DV)
