"""The kernels of the backward of ``selection_ranges``."""

from __future__ import annotations

from ....jit.compat import dot, narrow, tl, triton
from ....jit.tiles import base_2, load_tile
from .spans import key_of, numbered_spans


@triton.jit
def probabilities(q, k, lse, chosen, scale_log2):
    """Return exp(scale q.k - lse) [rows, keys], or 0 if not chosen. ``lse`` is natural."""
    s = tl.zeros([q.shape[0], k.shape[0]], dtype=tl.float32)
    s = dot(q, tl.trans(k), s) * scale_log2
    # The exponent of a key that is not chosen is arbitrary, and must not give infinity.
    return tl.exp2(tl.where(chosen, s - base_2(lse)[:, None], float("-inf")))


@triton.jit
def score_gradients(p, do, v, delta):
    """Return ds / scale [rows, keys]."""
    dp = tl.zeros([do.shape[0], v.shape[0]], dtype=tl.float32)
    dp = dot(do, tl.trans(v), dp)
    return p * (dp - delta[:, None])


@triton.jit
def ranges_dq_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    spans_ptr,
    before_ptr,
    out_ptr,
    do_ptr,
    lse_ptr,
    dlse_ptr,
    delta_ptr,
    dq_ptr,
    r_sb,
    r_ss,
    r_sg,
    r_sn,
    S,
    G,
    H,
    S_KV,
    n_spans,
    scale,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_L: tl.constexpr,
    SPANS: tl.constexpr,
    SEARCH_STEPS: tl.constexpr,
    HAS_DLSE: tl.constexpr,
):
    """Program (row, head tile), row = (b * S + s) * G + g: store dq and delta = rowsum(out do) -
    dlse."""
    r = tl.program_id(0).to(tl.int64)
    g = r % G
    s = r // G % S
    b = r // G // S
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    heads_ok = heads < H
    offset = r * H + heads
    d = tl.arange(0, BLOCK_D)
    q = load_tile(q_ptr, offset, D, heads_ok, D, BLOCK_D, True)
    do = load_tile(do_ptr, offset, DV, heads_ok, DV, BLOCK_DV, True)
    out = load_tile(out_ptr, offset, DV, heads_ok, DV, BLOCK_DV, True)
    lse = tl.load(lse_ptr + offset, mask=heads_ok, other=0.0)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    if HAS_DLSE:
        # A row without keys has an LSE of -inf, but no weights, so its dlse has no effect.
        delta -= tl.load(dlse_ptr + offset, mask=heads_ok, other=0.0)
    tl.store(delta_ptr + offset, delta, mask=heads_ok)
    k_base = k_ptr + (b * G + g) * S_KV * D
    v_base = v_ptr + (b * G + g) * S_KV * DV
    spans = spans_ptr + b * r_sb + s * r_ss + g * r_sg
    before = before_ptr + r * (n_spans + 1)
    number, stop, shift, total = numbered_spans(
        spans, before, r_sn, n_spans, S_KV, SPANS, SEARCH_STEPS
    )
    dq = tl.zeros([BLOCK_H, BLOCK_D], dtype=tl.float32)
    for first in range(0, total, BLOCK_L):
        pos = first + tl.arange(0, BLOCK_L)
        valid = pos < total
        key = key_of(
            pos, valid, spans, before, r_sn, number, stop, shift, n_spans, SEARCH_STEPS
        ).to(tl.int64)
        k = load_tile(k_base, key, D, valid, D, BLOCK_D, True)
        v = load_tile(v_base, key, DV, valid, DV, BLOCK_DV, True)
        chosen = heads_ok[:, None] & valid[None, :]
        p = probabilities(q, k, lse, chosen, scale_log2)
        ds = score_gradients(p, do, v, delta)
        dq = dot(narrow(ds, k.dtype), k, dq)
    tl.store(
        dq_ptr + offset[:, None] * D + d[None, :],
        narrow(dq * scale, dq_ptr.dtype.element_ty),
        mask=heads_ok[:, None] & (d[None, :] < D),
    )


@triton.jit
def bits_before(x, BLOCK_N: tl.constexpr):
    """Return int64 with a bit for each of the keys before ``x``, in a tile of at most 64 keys."""
    x = tl.minimum(tl.maximum(x, 0), BLOCK_N).to(tl.int64)
    first_bit = x * 0 + 1
    return tl.where(x == 64, -1, (first_bit << x) - 1)


@triton.jit
def either(a, b):
    return a | b


@triton.jit
def has_bit(bits, i):
    """Return whether bit ``i`` < 64 is set in int64 ``bits``, by operations on 32 bits."""
    half = tl.where(i < 32, bits.to(tl.int32), (bits >> 32).to(tl.int32))
    return (half >> (i % 32)) & 1 != 0


@triton.jit
def spans_by_query_kernel(
    spans_ptr,
    by_query_ptr,
    r_sb,
    r_ss,
    r_sg,
    r_sn,
    S,
    G,
    n_spans,
    BLOCK_S: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Program (queries, b * G + g): transpose spans [B,S,G,n,2] to [B,G,n,2,S] for
    ``plan_kernel``."""
    s = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    kv = tl.program_id(1).to(tl.int64)
    spans = spans_ptr + kv // G * r_sb + kv % G * r_sg + s.to(tl.int64)[:, None] * r_ss
    by_query = by_query_ptr + kv * n_spans * 2 * S + s[:, None]
    for first in range(0, n_spans * 2, BLOCK_N):
        edge = (first + tl.arange(0, BLOCK_N)).to(tl.int64)
        mask = (s < S)[:, None] & (edge < n_spans * 2)[None, :]
        where = edge // 2 * r_sn + edge % 2
        tile = tl.load(spans + where[None, :], mask=mask, other=0)
        tl.store(by_query + edge[None, :] * S, tile, mask=mask)


@triton.jit
def plan_kernel(
    spans_ptr,
    list_ptr,
    bits_ptr,
    count_ptr,
    selected_ptr,
    S,
    S_KV,
    n_spans,
    first_tile,
    BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Program (tile, b * G + g): list the queries that select some key of the tile, in order.

    Each query has a bit for each key that it selects. The number of queries and the union of their
    bits are also stored. Spans are [B,G,n,2,S], so that adjacent queries are one load.
    """
    tile = tl.program_id(0)
    kv = tl.program_id(1).to(tl.int64)
    low = (first_tile + tile) * BLOCK_N
    slot = kv * tl.num_programs(0) + tile
    spans = spans_ptr + kv * n_spans * 2 * S
    filled = 0
    selected = tl.zeros([BLOCK_S], dtype=tl.int64)
    for s0 in range(0, S, BLOCK_S):
        s = s0 + tl.arange(0, BLOCK_S)
        of_query = spans + s
        bits = tl.zeros([BLOCK_S], dtype=tl.int64)
        for _ in range(n_spans):
            begin = tl.load(of_query, mask=s < S, other=0)
            end = tl.load(of_query + S, mask=s < S, other=0)
            of_query += 2 * S
            begin = tl.minimum(tl.maximum(begin, 0), S_KV).to(tl.int32)
            end = tl.minimum(tl.maximum(end, 0), S_KV).to(tl.int32)
            bits |= bits_before(end - low, BLOCK_N) & ~bits_before(begin - low, BLOCK_N)
        hit = (bits != 0).to(tl.int32)
        offset = slot * S + filled + tl.cumsum(hit, 0) - hit
        tl.store(list_ptr + offset, s, mask=hit > 0)
        tl.store(bits_ptr + offset, bits, mask=hit > 0)
        filled += tl.sum(hit, 0)
        selected |= bits
    tl.store(count_ptr + slot, filled)
    tl.store(selected_ptr + slot, tl.reduce(selected, 0, either))


@triton.jit
def ranges_dkdv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    list_ptr,
    bits_ptr,
    count_ptr,
    selected_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    S,
    G,
    H,
    S_KV,
    first_tile,
    shares,
    share_stride,
    scale,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Program (tile, b * G + g, share): compute dk and dv of a tile over a share of its listed
    queries. The sums of shares are stored ``share_stride`` elements apart."""
    tile = tl.program_id(0)
    kv = tl.program_id(1).to(tl.int64)
    share = tl.program_id(2)
    slot = kv * tl.num_programs(0) + tile
    of_tile = tl.arange(0, BLOCK_N)
    keys = (first_tile + tile) * BLOCK_N + of_tile
    keys_ok = keys < S_KV
    key_at = kv * S_KV + keys
    d = tl.arange(0, BLOCK_D)
    e = tl.arange(0, BLOCK_DV)
    k = load_tile(k_ptr, key_at, D, keys_ok, D, BLOCK_D, True)
    v = load_tile(v_ptr, key_at, DV, keys_ok, DV, BLOCK_DV, True)
    dk = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_DV], dtype=tl.float32)
    rows = tl.load(count_ptr + slot) * H
    walk = tl.cdiv(tl.cdiv(rows, BLOCK_M), shares) * BLOCK_M
    first_row = kv // G * S * G + kv % G
    for m0 in range(share * walk, tl.minimum((share + 1) * walk, rows), BLOCK_M):
        # Rows are all heads of all listed queries, so that tiles need no padding of heads.
        m = m0 + tl.arange(0, BLOCK_M)
        valid = m < rows
        listed = slot * S + m // H
        s = tl.load(list_ptr + listed, mask=valid, other=0)
        bits = tl.load(bits_ptr + listed, mask=valid, other=0)
        offset = (first_row + s.to(tl.int64) * G) * H + m % H
        q = load_tile(q_ptr, offset, D, valid, D, BLOCK_D, True)
        do = load_tile(do_ptr, offset, DV, valid, DV, BLOCK_DV, True)
        lse = tl.load(lse_ptr + offset, mask=valid, other=0.0)
        delta = tl.load(delta_ptr + offset, mask=valid, other=0.0)
        chosen = has_bit(bits[:, None], of_tile[None, :])
        p = probabilities(q, k, lse, chosen, scale_log2)
        dv = dot(tl.trans(narrow(p, do.dtype)), do, dv)
        ds = score_gradients(p, do, v, delta)
        dk = dot(tl.trans(narrow(ds, q.dtype)), q, dk)
    # Clear the gradients of keys that no query selects: weight 0 times a value of NaN is NaN.
    selected = has_bit(tl.load(selected_ptr + slot), of_tile)[:, None]
    dk = tl.where(selected, dk, 0.0)
    dv = tl.where(selected, dv, 0.0)
    of_share = share.to(tl.int64) * share_stride
    tl.store(
        dk_ptr + of_share + key_at[:, None] * D + d[None, :],
        narrow(dk * scale, dk_ptr.dtype.element_ty),
        mask=keys_ok[:, None] & (d[None, :] < D),
    )
    tl.store(
        dv_ptr + of_share + key_at[:, None] * DV + e[None, :],
        narrow(dv, dv_ptr.dtype.element_ty),
        mask=keys_ok[:, None] & (e[None, :] < DV),
    )
