"""Gradients of attention under a band (`_band.py`), deterministic: nothing is added atomically.

``rest`` is what the softmax gradient subtracts from every logit's gradient: rowsum(out * d_out)
less the gradient of the LSE. One launch makes it, one dQ a query tile, one dK and dV a key tile.
"""

from __future__ import annotations

from ._band import band_of
from ._tiles import load_tile
from ._triton_compat import dot, narrow, tl, triton


@triton.jit
def band_rest_kernel(
    out_ptr,
    grad_ptr,
    dlse_ptr,
    rest_ptr,
    g_sb,
    g_st,
    g_sh,
    g_sd,
    l_sb,
    l_st,
    l_sh,
    T,
    HQ,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HAS_DLSE: tl.constexpr,
):
    """Program (query tile, head, batch): rest [B,HQ,T] = rowsum(out * d_out) - d_lse."""
    first = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    of_tile = tl.arange(0, BLOCK_M)
    t = first + of_tile
    inside = t < T
    dv = tl.arange(0, BLOCK_DV)
    row = ((batch * T + first) * HQ + head) * DV
    out = load_tile(out_ptr + row, of_tile, dv, HQ * DV, 1, inside, DV, BLOCK_DV, True)
    g_base = grad_ptr + batch * g_sb + head.to(tl.int64) * g_sh + first.to(tl.int64) * g_st
    grad = load_tile(g_base, of_tile, dv, g_st, g_sd, inside, DV, BLOCK_DV, True)
    rest = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
    if HAS_DLSE:
        l_base = dlse_ptr + batch * l_sb + head.to(tl.int64) * l_sh
        rest -= tl.load(l_base + t.to(tl.int64) * l_st, mask=inside, other=0.0)
    tl.store(rest_ptr + (batch * HQ + head) * T + t, rest, mask=inside)


@triton.jit
def band_dq_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    grad_ptr,
    lse_ptr,
    rest_ptr,
    dq_ptr,
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
    g_sb,
    g_st,
    g_sh,
    g_sd,
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
    """Program (query tile, query head, batch): dq [B,T,HQ,D]."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    of_tile = tl.arange(0, BLOCK_M)
    of_keys = tl.arange(0, BLOCK_N)
    t = first + of_tile
    inside = t < T
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    q_base = q_ptr + batch * q_sb + head.to(tl.int64) * q_sh + first.to(tl.int64) * q_st
    q = load_tile(q_base, of_tile, d, q_st, q_sd, inside, D, BLOCK_D, True)
    g_base = grad_ptr + batch * g_sb + head.to(tl.int64) * g_sh + first.to(tl.int64) * g_st
    grad = load_tile(g_base, of_tile, dv, g_st, g_sd, inside, DV, BLOCK_DV, True)
    row = (batch * HQ + head) * T + t
    lse = tl.load(lse_ptr + row, mask=inside, other=0.0) * 1.4426950408889634
    rest = tl.load(rest_ptr + row, mask=inside, other=0.0)
    kv_head = (head // GROUP).to(tl.int64)
    k_base = k_ptr + batch * k_sb + kv_head * k_sh
    v_base = v_ptr + batch * v_sb + kv_head * v_sh
    last = tl.minimum(first + BLOCK_M, T) - 1
    lo, hi = band_of(t, inside, lo_ptr, hi_ptr, N, window, BLOCK, STRIDE, WINDOWED, PACKED)
    lo0, _ = band_of(first, True, lo_ptr, hi_ptr, N, window, BLOCK, STRIDE, WINDOWED, PACKED)
    _, hi1 = band_of(last, True, lo_ptr, hi_ptr, N, window, BLOCK, STRIDE, WINDOWED, PACKED)
    begin = lo0 // BLOCK_N * BLOCK_N
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    for step in range(0, hi1 - begin, BLOCK_N):
        start = begin + step
        at = start.to(tl.int64)
        keys = start + of_keys
        k = load_tile(k_base + at * k_sn, of_keys, d, k_sn, k_sd, keys < N, D, BLOCK_D, True)
        v = load_tile(v_base + at * v_sn, of_keys, dv, v_sn, v_sd, keys < N, DV, BLOCK_DV, True)
        s = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        s = dot(q, tl.trans(k), s, PRECISION)
        dp = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        dp = dot(grad, tl.trans(v), dp, PRECISION)
        seen = (keys[None, :] >= lo[:, None]) & (keys[None, :] < hi[:, None])
        p = tl.where(seen, tl.exp2(s * scale_log2 - lse[:, None]), 0.0)
        ds = p * (dp - rest[:, None])
        acc = dot(narrow(ds, k.dtype), k, acc, PRECISION)
    acc = acc * (scale_log2 * 0.6931471805599453)
    row0 = ((batch * T + first) * HQ + head) * D
    tl.store(
        dq_ptr + row0 + of_tile[:, None] * (HQ * D) + d[None, :],
        narrow(acc, dq_ptr.dtype.element_ty),
        mask=inside[:, None] & (d[None, :] < D),
    )


@triton.jit
def band_dkv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    grad_ptr,
    lse_ptr,
    rest_ptr,
    dk_ptr,
    dv_ptr,
    lo_ptr,
    hi_ptr,
    seen_by_ptr,
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
    g_sb,
    g_st,
    g_sh,
    g_sd,
    T,
    N,
    HQ,
    GROUP,
    heads_a_share,
    n_batch,
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
    """Program (key tile, key head, batch and share of the group's heads).

    dk [shares,B,N,H,D], dv [shares,B,N,H,DV]: the sum over the query heads of a share.
    """
    first = tl.program_id(0) * BLOCK_N
    kv_head = tl.program_id(1)
    batch = (tl.program_id(2) % n_batch).to(tl.int64)
    share = tl.program_id(2) // n_batch
    H = HQ // GROUP
    of_keys = tl.arange(0, BLOCK_N)
    of_tile = tl.arange(0, BLOCK_M)
    keys = first + of_keys
    valid = keys < N
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    at = first.to(tl.int64)
    k_base = k_ptr + batch * k_sb + kv_head.to(tl.int64) * k_sh + at * k_sn
    k = load_tile(k_base, of_keys, d, k_sn, k_sd, valid, D, BLOCK_D, True)
    v_base = v_ptr + batch * v_sb + kv_head.to(tl.int64) * v_sh + at * v_sn
    v = load_tile(v_base, of_keys, dv, v_sn, v_sd, valid, DV, BLOCK_DV, True)
    behind = tl.minimum(first + BLOCK_N, N)
    # The queries that see some key of the tile are consecutive.
    if PACKED:
        begin = tl.load(seen_by_ptr + tl.program_id(0) * 2)
        end = tl.load(seen_by_ptr + tl.program_id(0) * 2 + 1)
    else:
        begin = first * STRIDE + (BLOCK - 1)
        end = T
        if WINDOWED:
            end = tl.minimum(T, (behind + window - 1) * STRIDE + (BLOCK - 1))
    dk_acc = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    dv_acc = tl.zeros([BLOCK_N, BLOCK_DV], dtype=tl.float32)
    first_head = kv_head * GROUP + share * heads_a_share
    heads = tl.minimum(heads_a_share, (kv_head + 1) * GROUP - first_head)
    for i in range(heads):
        head = first_head + i
        q_head = q_ptr + batch * q_sb + head.to(tl.int64) * q_sh
        g_head = grad_ptr + batch * g_sb + head.to(tl.int64) * g_sh
        rows = (batch * HQ + head) * T
        for step in range(0, end - begin, BLOCK_M):
            start = begin + step
            t = start + of_tile
            inside = t < end
            at_t = start.to(tl.int64)
            q = load_tile(q_head + at_t * q_st, of_tile, d, q_st, q_sd, inside, D, BLOCK_D, True)
            grad = load_tile(
                g_head + at_t * g_st, of_tile, dv, g_st, g_sd, inside, DV, BLOCK_DV, True
            )
            lse = tl.load(lse_ptr + rows + t, mask=inside, other=0.0) * 1.4426950408889634
            rest = tl.load(rest_ptr + rows + t, mask=inside, other=0.0)
            lo, hi = band_of(t, inside, lo_ptr, hi_ptr, N, window, BLOCK, STRIDE, WINDOWED, PACKED)
            s = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
            s = dot(k, tl.trans(q), s, PRECISION)
            seen = (keys[:, None] >= lo[None, :]) & (keys[:, None] < hi[None, :])
            seen = seen & inside[None, :]
            p = tl.where(seen, tl.exp2(s * scale_log2 - lse[None, :]), 0.0)
            dv_acc = dot(narrow(p, grad.dtype), grad, dv_acc, PRECISION)
            dp = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
            dp = dot(v, tl.trans(grad), dp, PRECISION)
            ds = p * (dp - rest[None, :])
            dk_acc = dot(narrow(ds, q.dtype), q, dk_acc, PRECISION)
    dk_acc = dk_acc * (scale_log2 * 0.6931471805599453)
    row = ((share * n_batch + batch) * N + first) * H + kv_head
    tl.store(
        dk_ptr + row * D + of_keys[:, None] * (H * D) + d[None, :],
        narrow(dk_acc, dk_ptr.dtype.element_ty),
        mask=valid[:, None] & (d[None, :] < D),
    )
    tl.store(
        dv_ptr + row * DV + of_keys[:, None] * (H * DV) + dv[None, :],
        narrow(dv_acc, dv_ptr.dtype.element_ty),
        mask=valid[:, None] & (dv[None, :] < DV),
    )
