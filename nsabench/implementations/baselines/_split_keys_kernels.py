"""Triton kernels of attention to spans of a cache, the keys of a row shared out among programs.

q [R,H,D] of rows R = B*S*G, k [B*G,keys,D], v [B*G,keys,DV], ranges int32 [R,n,2], all contiguous.
Heads of a group are the rows of a tile, padded to 16.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _is_new(at, i, starts, ends, order):
    """Which keys lie in no span before the i-th: a key counts once."""
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
    """Program (row, split): of the row's tiles every `SPLITS`-th, out [R,SPLITS,H,DV] of them, and
    lse [R,SPLITS,H] over log 2, -inf where they hold no key."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    cache = (row // (groups * queries)) * groups + row % groups
    heads, d, dv = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    real, tile_keys = heads < H, tl.arange(0, BLOCK_N)
    q_at = (row * H + heads)[:, None] * D + d[None, :]
    q = tl.load(q_ptr + q_at, mask=real[:, None] & (d < D)[None, :], other=0.0)
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
            key = (cache * keys + at)[:, None]
            k = tl.load(
                k_ptr + key * D + d[None, :], mask=seen[:, None] & (d < D)[None, :], other=0.0
            )
            v = tl.load(
                v_ptr + key * DV + dv[None, :], mask=seen[:, None] & (dv < DV)[None, :], other=0.0
            )
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
    out = acc / tl.where(some, total, 1.0)[:, None]
    place = (row * SPLITS + split) * H + heads
    tl.store(
        out_ptr + place[:, None] * DV + dv[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=real[:, None] & (dv < DV)[None, :],
    )
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
    """Program row: out [R,H,DV] of its splits."""
    row = tl.program_id(0).to(tl.int64)
    heads, dv = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_DV)
    real = heads < H
    mask = real[:, None] & (dv < DV)[None, :]
    top = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_H], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_DV], dtype=tl.float32)
    for split in range(SPLITS):
        place = (row * SPLITS + split) * H + heads
        lse = tl.load(lse_ptr + place, mask=real, other=float("-inf"))
        part = tl.load(part_ptr + place[:, None] * DV + dv[None, :], mask=mask, other=0.0)
        new_top = tl.maximum(top, lse)
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)
        alpha, weight = tl.exp2(top - safe), tl.exp2(lse - safe)
        total = total * alpha + weight
        acc = acc * alpha[:, None] + part * weight[:, None]
        top = new_top
    out = acc / tl.where(total > 0, total, 1.0)[:, None]
    at = (row * H + heads)[:, None] * DV + dv[None, :]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=mask)
