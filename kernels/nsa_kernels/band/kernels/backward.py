"""Gradients of attention under a band (`geometry.py`), without atomic additions.

``rest`` (FlashAttention's delta) is what the backward of softmax subtracts from the gradient of
each weight: rowsum(out * d_out) minus the gradient of the LSE. If the branch is part of a gated
sum, ``grad`` is the gradient of the sum. Then ``rest`` is the gradient of the gate, which an
earlier launch makes, and the kernels multiply the weights or dQ by the gate.

One launch makes dQ and, if not gated, ``rest``, with one program for each query tile of a head.
Another launch makes dK and dV, with one program for each key tile of a head. If there are few key
tiles, several programs share each tile, and a last launch adds up their sums.
"""

from __future__ import annotations

from ...jit.compat import dot, narrow, tl, triton
from ...jit.tiles import base_2, load_tile, natural
from .geometry import KEYS, band_of, part_of, tiles_of


@triton.jit(do_not_specialize=KEYS)
def band_dq_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    grad_ptr,
    out_ptr,
    lse_ptr,
    dlse_ptr,
    rest_ptr,
    gate_ptr,
    dq_ptr,
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
    HAS_DLSE: tl.constexpr,
    GATED: tl.constexpr,
    ADDED: tl.constexpr,
):
    """Program (query tile, query head, batch): write dq [B,T,HQ,D] and rest [B,HQ,T].

    If GATED, the output is multiplied by a gate [B,HQ,T] and added to other branches. ``grad`` is
    the gradient of that sum, and ``rest`` an input. If ADDED, add dq to the values in memory.
    """
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    of_tile = tl.arange(0, BLOCK_M)
    t = first + of_tile
    inside = t < T
    d = tl.arange(0, BLOCK_D)
    q_base = q_ptr + batch * q_sb + head.to(tl.int64) * q_sh + first.to(tl.int64) * q_st
    q = load_tile(q_base, of_tile, q_st, inside, D, BLOCK_D, True)
    row0 = (batch * T + first) * HQ + head
    grad = load_tile(grad_ptr + row0 * DV, of_tile, HQ * DV, inside, DV, BLOCK_DV, True)
    row = (batch * HQ + head) * T + t
    if GATED:
        rest = tl.load(rest_ptr + row, mask=inside, other=0.0)
    else:
        out = load_tile(out_ptr + row0 * DV, of_tile, HQ * DV, inside, DV, BLOCK_DV, True)
        rest = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
        if HAS_DLSE:
            rest -= tl.load(dlse_ptr + row, mask=inside, other=0.0)
        tl.store(rest_ptr + row, rest, mask=inside)
    lse = base_2(tl.load(lse_ptr + row, mask=inside, other=0.0))
    kv_head = (head // GROUP).to(tl.int64)
    k_base = k_ptr + batch * k_sb + kv_head * k_sh
    v_base = v_ptr + batch * v_sb + kv_head * v_sh
    last = tl.minimum(first + BLOCK_M, T) - 1
    lo, hi = band_of(t, inside, lo_ptr, hi_ptr, N, window, BLOCK, STRIDE, WINDOWED, PACKED)
    begin, whole, partial, behind = tiles_of(
        first, last, lo_ptr, hi_ptr, N, window, BLOCK_N, BLOCK, STRIDE, WINDOWED, PACKED
    )
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    for PART in tl.static_range(3):
        origin, end = part_of(PART, begin, whole, partial, behind)
        for step in range(0, end - origin, BLOCK_N):
            start = origin + step
            of_keys = tl.arange(0, BLOCK_N)
            keys = start + of_keys
            at = start.to(tl.int64)
            k = load_tile(k_base + at * k_sn, of_keys, k_sn, keys < N, D, BLOCK_D, PART != 1)
            v = load_tile(v_base + at * v_sn, of_keys, v_sn, keys < N, DV, BLOCK_DV, PART != 1)
            s = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
            s = dot(q, tl.trans(k), s)
            dp = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
            dp = dot(grad, tl.trans(v), dp)
            p = tl.exp2(s * scale_log2 - lse[:, None])
            # In part 1, every query sees every key.
            if PART != 1:
                seen = (keys[None, :] >= lo[:, None]) & (keys[None, :] < hi[:, None])
                p = tl.where(seen, p, 0.0)
            ds = p * (dp - rest[:, None])
            acc = dot(narrow(ds, k.dtype), k, acc)
    acc = acc * natural(scale_log2)
    to = dq_ptr + row0 * D + of_tile[:, None] * (HQ * D) + d[None, :]
    mask = inside[:, None] & (d[None, :] < D)
    if GATED:
        acc = acc * tl.load(gate_ptr + row, mask=inside, other=0.0)[:, None]
    if ADDED:
        acc += tl.load(to, mask=mask, other=0.0).to(tl.float32)
    tl.store(to, narrow(acc, dq_ptr.dtype.element_ty), mask=mask)


# Unlike kernels with ``geometry.KEYS``, this one may specialise N: N = 1 removes no loop here, so
# ptxas does not crash. If 16 divides N, the loop has fewer instructions.
@triton.jit
def band_dkv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    grad_ptr,
    lse_ptr,
    rest_ptr,
    gate_ptr,
    dk_ptr,
    dv_ptr,
    lo_ptr,
    hi_ptr,
    begin_ptr,
    end_ptr,
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
    n_batch,
    shares,
    share_stride,
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
    GATED: tl.constexpr,
):
    """Program (key tile, key head, batch and share): write dk [B,N,H,D] and dv [B,N,H,DV].

    The loop goes over the heads of the group and, for each, over the queries that see a key of the
    tile. ``shares`` programs divide the loop, and store their sums ``share_stride`` elements apart.
    GATED is as in ``band_dq_kernel``.
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
    offset = first.to(tl.int64)
    k_base = k_ptr + batch * k_sb + kv_head.to(tl.int64) * k_sh + offset * k_sn
    k = load_tile(k_base, of_keys, k_sn, valid, D, BLOCK_D, True)
    v_base = v_ptr + batch * v_sb + kv_head.to(tl.int64) * v_sh + offset * v_sn
    v = load_tile(v_base, of_keys, v_sn, valid, DV, BLOCK_DV, True)
    behind = tl.minimum(first + BLOCK_N, N)
    # The queries that see some key of the tile are consecutive.
    if PACKED:
        begin = tl.load(begin_ptr + first)
        end = tl.load(end_ptr + behind - 1)
    else:
        begin = first * STRIDE + (BLOCK - 1)
        end = T
        if WINDOWED:
            end = tl.minimum(T, (behind + window - 1) * STRIDE + (BLOCK - 1))
    dk_acc = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    dv_acc = tl.zeros([BLOCK_N, BLOCK_DV], dtype=tl.float32)
    steps = tl.cdiv(tl.maximum(end - begin, 0), BLOCK_M)
    walk = tl.cdiv(steps * GROUP, shares)
    for i in range(share * walk, tl.minimum((share + 1) * walk, steps * GROUP)):
        head = kv_head * GROUP + i // tl.maximum(steps, 1)
        start = begin + i % tl.maximum(steps, 1) * BLOCK_M
        t = start + of_tile
        inside = t < end
        at_t = start.to(tl.int64)
        q_base = q_ptr + batch * q_sb + head.to(tl.int64) * q_sh + at_t * q_st
        q = load_tile(q_base, of_tile, q_st, inside, D, BLOCK_D, True)
        g_base = grad_ptr + ((batch * T + at_t) * HQ + head) * DV
        grad = load_tile(g_base, of_tile, HQ * DV, inside, DV, BLOCK_DV, True)
        rows = (batch * HQ + head) * T + t
        lse = base_2(tl.load(lse_ptr + rows, mask=inside, other=0.0))
        rest = tl.load(rest_ptr + rows, mask=inside, other=0.0)
        lo, hi = band_of(t, inside, lo_ptr, hi_ptr, N, window, BLOCK, STRIDE, WINDOWED, PACKED)
        s = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
        s = dot(k, tl.trans(q), s)
        # Queries from ``end`` add nothing, since q and grad are loaded as zeros there.
        seen = keys[:, None] < hi[None, :]
        if WINDOWED or PACKED:
            seen = seen & (keys[:, None] >= lo[None, :])
        p = tl.where(seen, tl.exp2(s * scale_log2 - lse[None, :]), 0.0)
        if GATED:
            # Multiply the weights by the gate, and not grad, since the weights are in registers.
            p = p * tl.load(gate_ptr + rows, mask=inside, other=0.0)[None, :]
        dv_acc = dot(narrow(p, grad.dtype), grad, dv_acc)
        dp = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
        dp = dot(v, tl.trans(grad), dp)
        ds = p * (dp - rest[None, :])
        dk_acc = dot(narrow(ds, q.dtype), q, dk_acc)
    dk_acc = dk_acc * natural(scale_log2)
    # Clear the gradients of keys that no query sees: weight 0 times an infinite value is NaN.
    if PACKED:
        seen_from = tl.load(begin_ptr + keys, mask=valid, other=0)
        some = seen_from < tl.load(end_ptr + keys, mask=valid, other=0)
    else:
        some = keys * STRIDE + (BLOCK - 1) < T
    dk_acc = tl.where(some[:, None], dk_acc, 0.0)
    dv_acc = tl.where(some[:, None], dv_acc, 0.0)
    row = (batch * N + first) * H + kv_head
    of_share = share.to(tl.int64) * share_stride
    tl.store(
        dk_ptr + of_share + row * D + of_keys[:, None] * (H * D) + d[None, :],
        narrow(dk_acc, dk_ptr.dtype.element_ty),
        mask=valid[:, None] & (d[None, :] < D),
    )
    tl.store(
        dv_ptr + of_share + row * DV + of_keys[:, None] * (H * DV) + dv[None, :],
        narrow(dv_acc, dv_ptr.dtype.element_ty),
        mask=valid[:, None] & (dv[None, :] < DV),
    )
