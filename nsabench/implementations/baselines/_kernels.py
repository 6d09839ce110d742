"""The Triton kernels of the baselines query_major and split_keys.

The heads of a group are rows of a tile, padded to 16, 32, 64, … rows. All tensors are contiguous.

In query_major, q [N,HQ,D], k [N,H,D], v [N,H,DV] hold all sequences. rows int32 [N,H,S] has the
selected blocks, or -1. Block 0 of query n begins at token begin[n], int32 [N].
In split_keys, q is [R,H,D], k [B*G,keys,D], v [B*G,keys,DV], ranges int32 [R,n,2]. R is B*S*G.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load(base, rows, STRIDE: tl.constexpr, columns, WIDTH: tl.constexpr, keep):
    """Load rows [ROWS,COLUMNS], with zeros where `keep` is false."""
    mask = keep[:, None] & (columns < WIDTH)[None, :]
    return tl.load(base + rows[:, None] * STRIDE + columns[None, :], mask=mask, other=0.0)


@triton.jit
def _store(base, rows, columns, WIDTH: tl.constexpr, keep, values):
    """Store rows [ROWS,COLUMNS] of `WIDTH` elements, except where `keep` is false."""
    at = base + rows[:, None] * WIDTH + columns[None, :]
    mask = keep[:, None] & (columns < WIDTH)[None, :]
    tl.store(at, values.to(base.dtype.element_ty), mask=mask)


@triton.jit
def _scores(q, keys, k_base, valid, d, HEADS: tl.constexpr, D: tl.constexpr, scale_log2):
    """Return k [KEYS,D] of a head, and base-2 logits [ROWS,KEYS], -inf where a key is not seen."""
    k = _load(k_base, keys, HEADS * D, d, D, valid)
    s = tl.dot(q, tl.trans(k), allow_tf32=False) * scale_log2
    return k, tl.where(valid[None, :], s, float("-inf"))


@triton.jit
def forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    rows_ptr,
    begin_ptr,
    out_ptr,
    lse_ptr,
    scale_log2,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    S: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Compute out and the base-2 lse of one token and KV head."""
    n = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    begin = tl.load(begin_ptr + n)
    heads, d, dv = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    real = heads < G
    place = n * (H * G) + h * G + heads
    q = _load(q_ptr, place, D, d, D, real)
    top = tl.full([BLOCK_G], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_G], dtype=tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_DV], dtype=tl.float32)
    for slot in range(S):
        block = tl.load(rows_ptr + (n * H + h) * S + slot)
        if block >= 0:
            keys = begin + block.to(tl.int64) * SIZE + tl.arange(0, SIZE)
            valid = keys <= n
            _k, s = _scores(q, keys, k_ptr + h * D, valid, d, H, D, scale_log2)
            new_top = tl.maximum(top, tl.max(s, 1))
            p = tl.exp2(s - new_top[:, None])
            alpha = tl.exp2(top - new_top)
            v = _load(v_ptr + h * DV, keys, H * DV, dv, DV, valid)
            total = total * alpha + tl.sum(p, 1)
            acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, allow_tf32=False)
            top = new_top
    some = total > 0
    _store(out_ptr, place, dv, DV, real, acc / tl.where(some, total, 1.0)[:, None])
    lse = tl.where(some, top + tl.log2(tl.where(some, total, 1.0)), 0.0)
    tl.store(lse_ptr + place, lse, mask=real)


@triton.jit
def query_gradient_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    rows_ptr,
    begin_ptr,
    lse_ptr,
    delta_ptr,
    do_ptr,
    dq_ptr,
    scale_log2,
    scale,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    S: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Compute dq of one token and KV head."""
    n = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    begin = tl.load(begin_ptr + n)
    heads, d, dv = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    real = heads < G
    place = n * (H * G) + h * G + heads
    q = _load(q_ptr, place, D, d, D, real)
    do = _load(do_ptr, place, DV, dv, DV, real)
    lse = tl.load(lse_ptr + place, mask=real, other=0.0)
    delta = tl.load(delta_ptr + place, mask=real, other=0.0)
    dq = tl.zeros([BLOCK_G, BLOCK_D], dtype=tl.float32)
    for slot in range(S):
        block = tl.load(rows_ptr + (n * H + h) * S + slot)
        if block >= 0:
            keys = begin + block.to(tl.int64) * SIZE + tl.arange(0, SIZE)
            valid = keys <= n
            k, s = _scores(q, keys, k_ptr + h * D, valid, d, H, D, scale_log2)
            v = _load(v_ptr + h * DV, keys, H * DV, dv, DV, valid)
            p = tl.exp2(s - lse[:, None])
            ds = p * (tl.dot(do, tl.trans(v), allow_tf32=False) - delta[:, None])
            dq += tl.dot(ds.to(k.dtype), k, allow_tf32=False)
    _store(dq_ptr, place, d, D, real, dq * scale)


@triton.jit
def key_gradient_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    first_ptr,
    owner_ptr,
    piece_ptr,
    bounds_ptr,
    queries_ptr,
    lse_ptr,
    delta_ptr,
    do_ptr,
    dk_ptr,
    dv_ptr,
    scale_log2,
    scale,
    blocks,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    SIZE: tl.constexpr,
    PIECE: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Add to a block's dk and dv, in float32, the terms of up to PIECE queries that chose it.

    owner[program] is block * H + head, or `blocks * H` if the program has no work. The queries that
    chose this block and head begin at bounds[owner] in `queries`; a program takes them from number
    piece[program] * PIECE. A block has the tokens from first[block] up to first[blocks + block].
    """
    program = tl.program_id(0)
    owner = tl.load(owner_ptr + program)
    if owner < blocks * H:
        h = owner % H
        begin = tl.load(first_ptr + owner // H)
        start = tl.load(bounds_ptr + owner) + tl.load(piece_ptr + program) * PIECE
        end = tl.minimum(tl.load(bounds_ptr + owner + 1), start + PIECE)
        d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
        keys = begin + tl.arange(0, SIZE)
        last = tl.load(first_ptr + blocks + owner // H)
        valid = keys < last
        k_mask = valid[:, None] & (d < D)[None, :]
        v_mask = valid[:, None] & (dv < DV)[None, :]
        k_at = keys[:, None] * (H * D) + h * D + d[None, :]
        v_at = keys[:, None] * (H * DV) + h * DV + dv[None, :]
        k = tl.load(k_ptr + k_at, mask=k_mask, other=0.0)
        v = tl.load(v_ptr + v_at, mask=v_mask, other=0.0)
        rows = tl.arange(0, QUERIES * BLOCK_G)
        head = rows % BLOCK_G
        dk_sum = tl.zeros([SIZE, BLOCK_D], dtype=tl.float32)
        dv_sum = tl.zeros([SIZE, BLOCK_DV], dtype=tl.float32)
        for at in range(start, end, QUERIES):
            here = at + rows // BLOCK_G
            real = (here < end) & (head < G)
            n = tl.load(queries_ptr + here, mask=real, other=0).to(tl.int64)
            place = n * (H * G) + h * G + head
            q = _load(q_ptr, place, D, d, D, real)
            do = _load(do_ptr, place, DV, dv, DV, real)
            lse = tl.load(lse_ptr + place, mask=real, other=0.0)
            delta = tl.load(delta_ptr + place, mask=real, other=0.0)
            seen = real[:, None] & valid[None, :] & (keys[None, :] <= n[:, None])
            s = tl.dot(q, tl.trans(k), allow_tf32=False) * scale_log2
            p = tl.where(seen, tl.exp2(s - lse[:, None]), 0.0)
            dv_sum += tl.dot(tl.trans(p.to(do.dtype)), do, allow_tf32=False)
            ds = p * (tl.dot(do, tl.trans(v), allow_tf32=False) - delta[:, None])
            dk_sum += tl.dot(tl.trans(ds.to(q.dtype)), q, allow_tf32=False)
        tl.atomic_add(dk_ptr + k_at, dk_sum * scale, mask=k_mask, sem="relaxed")
        tl.atomic_add(dv_ptr + v_at, dv_sum, mask=v_mask, sem="relaxed")


@triton.jit
def _is_new(at, i, starts, ends, order):
    """Return which keys are in no span before span i, so that each key counts once."""
    earlier = (order < i)[None, :] & (at[:, None] >= starts[None, :])
    earlier = earlier & (at[:, None] < ends[None, :])
    return tl.sum(earlier.to(tl.int32), 1) == 0


@triton.jit
def spans_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    ranges_ptr,
    out_ptr,
    lse_ptr,
    scale_log2,
    keys,
    groups,
    queries,
    n,
    H: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    SPANS: tl.constexpr,
    SPLITS: tl.constexpr,
    DISJOINT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Attend from a row to every `SPLITS`-th tile: out [R,SPLITS,H,DV], base-2 lse [R,SPLITS,H]."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    cache = (row // (groups * queries)) * groups + row % groups
    heads, d, dv = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    real, tile_keys = heads < H, tl.arange(0, BLOCK_N)
    q = _load(q_ptr, row * H + heads, D, d, D, real)
    order = tl.arange(0, SPANS)
    spans_at = ranges_ptr + (row * n + order) * 2
    starts = tl.load(spans_at, mask=order < n, other=0)
    ends = tl.load(spans_at + 1, mask=order < n, other=0)
    top = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_H], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_DV], dtype=tl.float32)
    done = 0
    for i in range(n):
        begin = tl.maximum(tl.load(ranges_ptr + (row * n + i) * 2), 0)
        end = tl.minimum(tl.load(ranges_ptr + (row * n + i) * 2 + 1), keys)
        tiles = (tl.maximum(end - begin, 0) + BLOCK_N - 1) // BLOCK_N
        first = (split + SPLITS - done % SPLITS) % SPLITS
        for tile in range(first, tiles, SPLITS):
            at = begin + tile * BLOCK_N + tile_keys
            seen = at < end
            if not DISJOINT:
                seen = seen & _is_new(at, i, starts, ends, order)
            k = _load(k_ptr, cache * keys + at, D, d, D, seen)
            v = _load(v_ptr, cache * keys + at, DV, dv, DV, seen)
            s = tl.dot(q, tl.trans(k), allow_tf32=False) * scale_log2
            s = tl.where(seen[None, :], s, float("-inf"))
            new_top = tl.maximum(top, tl.max(s, 1))
            safe = tl.where(new_top == float("-inf"), 0.0, new_top)
            p = tl.exp2(s - safe[:, None])
            alpha = tl.exp2(top - safe)
            total = total * alpha + tl.sum(p, 1)
            acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, allow_tf32=False)
            top = new_top
        done += tiles
    some = total > 0
    place = (row * SPLITS + split) * H + heads
    _store(out_ptr, place, dv, DV, real, acc / tl.where(some, total, 1.0)[:, None])
    lse = tl.where(some, top + tl.log2(tl.where(some, total, 1.0)), float("-inf"))
    tl.store(lse_ptr + place, lse, mask=real)


@triton.jit
def merge_kernel(
    part_ptr,
    lse_ptr,
    out_ptr,
    H: tl.constexpr,
    DV: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    heads, dv = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_DV)
    real = heads < H
    top = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_H], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_DV], dtype=tl.float32)
    for split in range(SPLITS):
        place = (row * SPLITS + split) * H + heads
        lse = tl.load(lse_ptr + place, mask=real, other=float("-inf"))
        part = _load(part_ptr, place, DV, dv, DV, real)
        new_top = tl.maximum(top, lse)
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)
        alpha, weight = tl.exp2(top - safe), tl.exp2(lse - safe)
        total = total * alpha + weight
        acc = acc * alpha[:, None] + part * weight[:, None]
        top = new_top
    out = acc / tl.where(total > 0, total, 1.0)[:, None]
    _store(out_ptr, row * H + heads, dv, DV, real, out)
