"""The forward kernel of attention under a band (`geometry.py`). Logits are in the log2 domain."""

from __future__ import annotations

from ...jit.compat import dot, narrow, tl, triton
from ...jit.tiles import load_tile, log_sum_exp, normalised
from .geometry import KEYS, band_of, part_of, tiles_of


@triton.jit(do_not_specialize=KEYS)
def band_forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    lo_ptr,
    hi_ptr,
    q_sb,
    q_st,
    q_sh,
    k_sb,
    k_sn,
    k_sh,
    v_sb,
    v_sn,
    v_sh,
    T,
    N,
    HQ,
    GROUP,
    window,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
    STRIDE: tl.constexpr,
    WINDOWED: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Program (query tile, query head, batch): write out [B,T,HQ,DV] and natural lse [B,HQ,T]."""
    # Without a window the last tiles have the most keys; begin with them.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    of_tile = tl.arange(0, BLOCK_M)
    t = first + of_tile
    inside = t < T
    dv = tl.arange(0, BLOCK_DV)
    q_base = q_ptr + batch * q_sb + head.to(tl.int64) * q_sh + first.to(tl.int64) * q_st
    q = load_tile(q_base, of_tile, q_st, inside, D, BLOCK_D, True)
    kv_head = (head // GROUP).to(tl.int64)
    k_base = k_ptr + batch * k_sb + kv_head * k_sh
    v_base = v_ptr + batch * v_sb + kv_head * v_sh
    last = tl.minimum(first + BLOCK_M, T) - 1
    lo, hi = band_of(t, inside, lo_ptr, hi_ptr, N, window, BLOCK, STRIDE, WINDOWED, PACKED)
    begin, whole, partial, behind = tiles_of(
        first, last, lo_ptr, hi_ptr, N, window, BLOCK_N, BLOCK, STRIDE, WINDOWED, PACKED
    )
    row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], dtype=tl.float32)
    for PART in tl.static_range(3):
        origin, end = part_of(PART, begin, whole, partial, behind)
        for step in range(0, end - origin, BLOCK_N):
            start = origin + step
            of_keys = tl.arange(0, BLOCK_N)
            keys = start + of_keys
            at = start.to(tl.int64)
            k = load_tile(k_base + at * k_sn, of_keys, k_sn, keys < N, D, BLOCK_D, PART != 1)
            s = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
            s = dot(q, tl.trans(k), s)
            # In part 1, every query sees every key.
            if PART != 1:
                seen = (keys[None, :] >= lo[:, None]) & (keys[None, :] < hi[:, None])
                s = tl.where(seen, s, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(s, 1) * scale_log2)
            finite = new_max
            if PART != 1:
                finite = tl.where(new_max == float("-inf"), 0.0, new_max)
            p = tl.exp2(s * scale_log2 - finite[:, None])
            alpha = tl.exp2(row_max - finite)
            row_sum = row_sum * alpha + tl.sum(p, 1)
            acc = acc * alpha[:, None]
            v = load_tile(v_base + at * v_sn, of_keys, v_sn, keys < N, DV, BLOCK_DV, PART != 1)
            acc = dot(narrow(p, v.dtype), v, acc)
            row_max = new_max
    some = row_sum > 0
    out, divisor = normalised(acc, row_sum, some)
    out = narrow(out, out_ptr.dtype.element_ty)
    row = ((batch * T + first) * HQ + head) * DV
    offset = of_tile[:, None] * (HQ * DV) + dv[None, :]
    tl.store(out_ptr + row + offset, out, mask=inside[:, None] & (dv[None, :] < DV))
    lse = log_sum_exp(row_max, divisor, some)
    tl.store(lse_ptr + (batch * HQ + head) * T + t, lse, mask=inside)
