"""Bands: query t sees the keys lo(t) to hi(t) - 1. Neither bound ever decreases with t.

    hi(t) = min(N, max((t + 1 - BLOCK) // STRIDE + 1, 0))      lo(t) = max(hi(t) - window, 0)

A sliding window has BLOCK = STRIDE = 1. The compressed keys of NSA are a band without a window: a
query sees a key if all BLOCK tokens of the key are at or before the query. Packed sequences are
also a band, whose ``lo`` and ``hi`` are read from tables.
"""

from __future__ import annotations

from ...jit.compat import tl, triton
from ...jit.sequences import sequence_of

# N must not be specialised: if N = 1 becomes a constant, ptxas 12.8 crashes on some tiles.
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
    """Return the keys [lo, hi) of queries ``t`` (int32, scalar or vector)."""
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
    """Return bounds (begin, whole, partial, behind) of the keys that the queries ``first`` to
    ``last`` see. The first tile of these keys begins at ``begin``, and the last key is before
    ``behind``. All of the queries see all keys from ``whole`` to ``partial`` - 1."""
    lo0, hi0 = band_of(first, True, lo_ptr, hi_ptr, N, window, BLOCK, STRIDE, WINDOWED, PACKED)
    lo1, hi1 = band_of(last, True, lo_ptr, hi_ptr, N, window, BLOCK, STRIDE, WINDOWED, PACKED)
    whole = tl.minimum(tl.cdiv(lo1, BLOCK_N), hi1 // BLOCK_N) * BLOCK_N
    partial = tl.maximum(hi0 // BLOCK_N * BLOCK_N, whole)
    return lo0 // BLOCK_N * BLOCK_N, whole, partial, hi1


@triton.jit
def part_of(PART: tl.constexpr, begin, whole, partial, behind):
    """Return where part PART (0 to 2) of the keys begins and ends. The bounds come from
    ``tiles_of``. Only part 1 needs no mask."""
    if PART == 0:
        origin = begin
        end = whole
    elif PART == 1:
        origin = whole
        end = partial
    else:
        origin = partial
        end = behind
    return origin, end


@triton.jit
def band_tables_kernel(
    cu_ptr,
    cu_keys_ptr,
    lo_ptr,
    hi_ptr,
    begin_ptr,
    end_ptr,
    T,
    N,
    sequences,
    window,
    BLOCK: tl.constexpr,
    STRIDE: tl.constexpr,
    WINDOWED: tl.constexpr,
    STEPS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (TILE queries and TILE keys): store lo, hi [T] of queries and begin, end [N] of keys.

    Query t sees the keys lo[t] to hi[t] - 1. Only the queries begin[j] to end[j] - 1 may see key j.
    Queries after the last sequence see no key, and no query sees keys after the last sequence.

    The results never decrease. cu_keys, lo and hi are clamped to [0, N], begin and end to [0, T].
    """
    position = tl.program_id(0) * TILE + tl.arange(0, TILE)
    last_query = tl.load(cu_ptr + sequences)
    last_key = tl.minimum(tl.maximum(tl.load(cu_keys_ptr + sequences), 0), N)

    i = sequence_of(cu_ptr, position, sequences, STEPS)
    k0 = tl.minimum(tl.maximum(tl.load(cu_keys_ptr + i), 0), N)
    k1 = tl.minimum(tl.maximum(tl.load(cu_keys_ptr + i + 1), 0), N)
    seen = tl.maximum(position - tl.load(cu_ptr + i) + (1 - BLOCK + STRIDE), 0) // STRIDE
    hi = k0 + tl.minimum(seen, k1 - k0)
    lo = k0
    if WINDOWED:
        lo = tl.maximum(k0, hi - window)
    tl.store(lo_ptr + position, tl.where(position < last_query, lo, last_key), mask=position < T)
    tl.store(hi_ptr + position, tl.where(position < last_query, hi, last_key), mask=position < T)

    i = sequence_of(cu_keys_ptr, position, sequences, STEPS)
    k0 = tl.minimum(tl.maximum(tl.load(cu_keys_ptr + i), 0), N)
    behind = tl.load(cu_ptr + i + 1).to(tl.int64)
    complete = tl.load(cu_ptr + i) + (position - k0).to(tl.int64) * STRIDE + (BLOCK - 1)
    end = behind
    if WINDOWED:
        end = tl.minimum(behind, complete + window * STRIDE)
    begin = tl.where(position < last_key, tl.minimum(complete, behind), last_query)
    end = tl.where(position < last_key, end, last_query)
    tl.store(
        begin_ptr + position, tl.minimum(tl.maximum(begin, 0), T).to(tl.int32), mask=position < N
    )
    tl.store(end_ptr + position, tl.minimum(tl.maximum(end, 0), T).to(tl.int32), mask=position < N)
