"""The compression branch of one token, which also leaves its logits."""

from __future__ import annotations

from ....jit.compat import dot, start_next_launch, tl, triton
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
    q_sn,
    q_sh,
    q_sd,
    k_sn,
    k_sl,
    k_sd,
    v_sn,
    v_sl,
    v_sd,
    H,
    L,
    padded,
    chunk,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_L: tl.constexpr,
    SPLIT: tl.constexpr,
    LATE: tl.constexpr,
    PDL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (row, share, head tile): keys ``share * chunk`` up to ``chunk`` further.

    logits: fp32 [rows, H, padded], times scale and log2(e).
    """
    start_next_launch(PDL)
    n = tl.program_id(0).to(tl.int64)
    share = tl.program_id(1)
    head0 = tl.program_id(2) * BLOCK_H
    heads = head0 + tl.arange(0, BLOCK_H)
    heads_ok = heads < H
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    lo = share * chunk
    hi = tl.minimum(lo + chunk, L)
    row_max = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
    sums = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_DV], dtype=tl.float32)
    q = load_tile(q_ptr + n * q_sn, heads.to(tl.int64), d, q_sh, q_sd, heads_ok, D, BLOCK_D, True)
    logits = logits_ptr + (n * H + heads)[:, None] * padded
    for start in range(lo, hi, BLOCK_L):
        pos = start + tl.arange(0, BLOCK_L)
        valid = pos < hi
        offset = pos.to(tl.int64)
        k = load_tile(k_ptr + n * k_sn, offset, d, k_sl, k_sd, valid, D, BLOCK_D, True)
        v = load_tile(v_ptr + n * v_sn, offset, dv, v_sl, v_sd, valid, DV, BLOCK_DV, True)
        s = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
        s = dot(late(q, start >= lo, LATE), tl.trans(k), s, PRECISION) * scale_log2
        # Tiles end where shares do, so that this mask is the same for a whole line.
        tl.store(logits + offset[None, :], s, mask=heads_ok[:, None] & (pos < padded)[None, :])
        s = tl.where(valid[None, :], s, float("-inf"))
        row_max, sums, acc = softmax_update(s, v, row_max, sums, acc, PRECISION)
    row_sum = tl.sum(sums, 1)
    if SPLIT:
        slot = n * tl.num_programs(1) + share
        store_share(
            part_ptr, plse_ptr, slot, acc, row_max, row_sum, head0, H, DV, BLOCK_H, BLOCK_DV
        )
    else:
        store_row(
            out_ptr + n * H * DV,
            lse_ptr + n * H,
            acc,
            row_max,
            row_sum,
            head0,
            H,
            DV,
            BLOCK_H,
            BLOCK_DV,
        )
