"""Attention under a band: query t sees keys lo(t) up to hi(t), neither of which ever decreases.

    hi(t) = min(N, (t + 1 - BLOCK) // STRIDE + 1, at least 0)      lo(t) = max(hi(t) - window, 0)

A sliding window is BLOCK = STRIDE = 1; the compressed keys of NSA, which a query sees once all
their BLOCK tokens are behind it, are a band without a window. Sequences packed one after another
are a band, too, whose ``lo`` and ``hi`` are read from tables. Logits live in the log2 domain.
"""

from __future__ import annotations

from ..jit.compat import dot, narrow, tl, triton
from ..jit.tiles import load_tile

# One key is no special case: as a constant it makes ptxas 12.8 crash in some tiles.
KEYS = ("N",)


@triton.jit
def band_of(
    t,
    ok,
    lo_ptr,
    hi_ptr,
    N,
    window,
    BLOCK: tl.constexpr,
    STRIDE: tl.constexpr,
    WINDOWED: tl.constexpr,
    PACKED: tl.constexpr,
):
    """The keys [lo, hi) of queries ``t`` (int32, scalar or vector)."""
    if PACKED:
        lo = tl.load(lo_ptr + t, mask=ok, other=0)
        hi = tl.load(hi_ptr + t, mask=ok, other=0)
    else:
        hi = tl.minimum(tl.maximum(t + (1 - BLOCK + STRIDE), 0) // STRIDE, N)
        lo = hi * 0
        if WINDOWED:
            lo = tl.maximum(hi - window, 0)
    return lo, hi


@triton.jit
def tiles_of(
    first,
    last,
    lo_ptr,
    hi_ptr,
    N,
    window,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
    STRIDE: tl.constexpr,
    WINDOWED: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Where the tiles of keys of the queries ``first`` to ``last`` begin, from and before which
    all of these see a whole tile, and where their keys end."""
    lo0, hi0 = band_of(first, True, lo_ptr, hi_ptr, N, window, BLOCK, STRIDE, WINDOWED, PACKED)
    lo1, hi1 = band_of(last, True, lo_ptr, hi_ptr, N, window, BLOCK, STRIDE, WINDOWED, PACKED)
    whole = tl.minimum(tl.cdiv(lo1, BLOCK_N), hi1 // BLOCK_N) * BLOCK_N
    partial = tl.maximum(hi0 // BLOCK_N * BLOCK_N, whole)
    return lo0 // BLOCK_N * BLOCK_N, whole, partial, hi1


@triton.jit
def band_step(
    q,
    k_base,
    v_base,
    start,
    lo,
    hi,
    N,
    row_max,
    row_sum,
    acc,
    k_sn,
    k_sd,
    v_sn,
    v_sd,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One online-softmax step of all queries of a tile with keys ``start`` to ``start + BLOCK_N``.

    Not MASKED: every query sees every key of the tile.
    """
    of_tile = tl.arange(0, BLOCK_N)
    keys = start + of_tile
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    at = start.to(tl.int64)
    k = load_tile(k_base + at * k_sn, of_tile, d, k_sn, k_sd, keys < N, D, BLOCK_D, MASKED)
    s = tl.zeros([q.shape[0], BLOCK_N], dtype=tl.float32)
    s = dot(q, tl.trans(k), s, PRECISION)
    if MASKED:
        seen = (keys[None, :] >= lo[:, None]) & (keys[None, :] < hi[:, None])
        s = tl.where(seen, s, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(s, 1) * scale_log2)
    finite = new_max
    if MASKED:
        finite = tl.where(new_max == float("-inf"), 0.0, new_max)
    p = tl.exp2(s * scale_log2 - finite[:, None])
    alpha = tl.exp2(row_max - finite)
    row_sum = row_sum * alpha + tl.sum(p, 1)
    acc = acc * alpha[:, None]
    v = load_tile(v_base + at * v_sn, of_tile, dv, v_sn, v_sd, keys < N, DV, BLOCK_DV, MASKED)
    acc = dot(narrow(p, v.dtype), v, acc, PRECISION)
    return new_max, row_sum, acc


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
    q_sd,
    k_sb,
    k_sn,
    k_sh,
    k_sd,
    v_sb,
    v_sn,
    v_sh,
    v_sd,
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
    PRECISION: tl.constexpr,
):
    """Program (query tile, query head, batch). out [B,T,HQ,DV]; lse [B,HQ,T], natural."""
    # The last tiles have the most keys where there is no window; begin with them.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    of_tile = tl.arange(0, BLOCK_M)
    t = first + of_tile
    inside = t < T
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    q_base = q_ptr + batch * q_sb + head.to(tl.int64) * q_sh + first.to(tl.int64) * q_st
    q = load_tile(q_base, of_tile, d, q_st, q_sd, inside, D, BLOCK_D, True)
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
        if PART == 0:
            origin = begin
            end = whole
        elif PART == 1:
            origin = whole
            end = partial
        else:
            origin = partial
            end = behind
        for step in range(0, end - origin, BLOCK_N):
            row_max, row_sum, acc = band_step(
                q,
                k_base,
                v_base,
                origin + step,
                lo,
                hi,
                N,
                row_max,
                row_sum,
                acc,
                k_sn,
                k_sd,
                v_sn,
                v_sd,
                scale_log2,
                D,
                DV,
                BLOCK_D,
                BLOCK_DV,
                BLOCK_N,
                PART != 1,
                PRECISION,
            )
    some = row_sum > 0
    safe = tl.where(some, row_sum, 1.0)
    out = narrow(acc / safe[:, None], out_ptr.dtype.element_ty)
    row = ((batch * T + first) * HQ + head) * DV
    at = of_tile[:, None] * (HQ * DV) + dv[None, :]
    tl.store(out_ptr + row + at, out, mask=inside[:, None] & (dv[None, :] < DV))
    lse = tl.where(some, (row_max + tl.log2(safe)) * 0.6931471805599453, float("-inf"))
    tl.store(lse_ptr + (batch * HQ + head) * T + t, lse, mask=inside)
