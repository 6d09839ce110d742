"""The kernels of ``selection_rows``."""

from __future__ import annotations

from ...jit.compat import narrow, start_next_launch, tl, triton
from ...jit.tiles import late, load_tile, log_sum_exp, softmax_step, store_row, store_share


@triton.jit
def rows_group_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    part_ptr,
    plse_ptr,
    q_sn,
    q_sh,
    k_sn,
    k_sl,
    v_sn,
    v_sl,
    H,
    L,
    chunk,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_L: tl.constexpr,
    SPLIT: tl.constexpr,
    ONE_TILE: tl.constexpr,
    MASKED: tl.constexpr,
    LATE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (row, split, head tile): attend to up to ``chunk`` keys from ``split * chunk``."""
    start_next_launch(PDL)
    n = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    head0 = tl.program_id(2) * BLOCK_H
    heads = head0 + tl.arange(0, BLOCK_H)
    heads_ok = heads < H
    k_base = k_ptr + n * k_sn
    v_base = v_ptr + n * v_sn
    q_base = q_ptr + n * q_sn
    lo = split * chunk
    hi = tl.minimum(lo + chunk, L)
    row_max = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
    sums = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_DV], dtype=tl.float32)
    q = load_tile(q_base, heads.to(tl.int64), q_sh, heads_ok, D, BLOCK_D, True)
    if ONE_TILE:
        pos = lo + tl.arange(0, BLOCK_L)
        k = load_tile(k_base, pos.to(tl.int64), k_sl, pos < hi, D, BLOCK_D, MASKED)
        v = load_tile(v_base, pos.to(tl.int64), v_sl, pos < hi, DV, BLOCK_DV, MASKED)
        row_max, sums, acc = softmax_step(q, k, v, pos < hi, row_max, sums, acc, scale_log2, MASKED)
    else:
        for start in range(lo, hi, BLOCK_L):
            pos = start + tl.arange(0, BLOCK_L)
            now = start >= lo
            offset = pos.to(tl.int64)
            valid = pos < hi
            k = load_tile(k_base, offset, k_sl, valid, D, BLOCK_D, MASKED)
            v = load_tile(v_base, offset, v_sl, valid, DV, BLOCK_DV, MASKED)
            row_max, sums, acc = softmax_step(
                late(q, now, LATE), k, v, valid, row_max, sums, acc, scale_log2, MASKED
            )
    row_sum = tl.sum(sums, 1)
    out_row = out_ptr + n * H * DV
    lse_row = lse_ptr + n * H
    if SPLIT:
        slot = n * tl.num_programs(1) + split
        store_share(part_ptr, plse_ptr, slot, acc, row_max, row_sum, head0, H, DV)
    else:
        store_row(out_row, lse_row, acc, row_max, row_sum, head0, H, DV)


@triton.jit
def rows_per_head_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    q_sn,
    q_sh,
    k_sn,
    k_sl,
    v_sn,
    v_sl,
    H,
    L,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """Program (row, head): attend with one head, without tensor cores. Each head reads K and V."""
    n = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    q = tl.load(q_ptr + n * q_sn + h * q_sh + d, mask=d < D, other=0.0).to(tl.float32)
    row_max = float("-inf")
    row_sum = 0.0
    acc = tl.zeros([BLOCK_DV], dtype=tl.float32)
    for start in range(0, L, BLOCK_L):
        pos = start + tl.arange(0, BLOCK_L)
        valid = pos < L
        k = load_tile(k_ptr + n * k_sn, pos.to(tl.int64), k_sl, valid, D, BLOCK_D, True).to(
            tl.float32
        )
        v = load_tile(v_ptr + n * v_sn, pos.to(tl.int64), v_sl, valid, DV, BLOCK_DV, True).to(
            tl.float32
        )
        s = tl.sum(k * q[None, :], 1) * scale_log2
        s = tl.where(valid, s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 0))
        p = tl.exp2(s - new_max)
        alpha = tl.exp2(row_max - new_max)
        row_sum = row_sum * alpha + tl.sum(p, 0)
        acc = acc * alpha + tl.sum(v * p[:, None], 0)
        row_max = new_max
    divisor = tl.where(row_sum > 0, row_sum, 1.0)
    out = acc / divisor
    lse = log_sum_exp(row_max, divisor, row_sum > 0)
    tl.store(out_ptr + (n * H + h) * DV + dv, narrow(out, out_ptr.dtype.element_ty), mask=dv < DV)
    tl.store(lse_ptr + n * H + h, lse)
