"""Make the table of a band for queries that are the last tokens of their sequences."""

from __future__ import annotations

from ...jit.compat import tl, triton
from ...jit.sequences import sequence_of


@triton.jit
def queries_behind_kernel(
    cu_ptr,
    cu_tokens_ptr,
    cu_keys_ptr,
    lo_ptr,
    hi_ptr,
    T,
    N,
    sequences,
    first,
    window,
    BLOCK: tl.constexpr,
    STRIDE: tl.constexpr,
    WINDOWED: tl.constexpr,
    PACKED: tl.constexpr,
    STEPS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (TILE queries): store lo and hi [T]. Query t sees the keys lo[t] to hi[t] - 1.

    ``first`` tokens come before query 0. If PACKED, cu_tokens says instead where the tokens of each
    sequence begin, and the last of these tokens are the queries. Queries in no sequence see no key.

    lo and hi never decrease. Values of cu_keys, lo and hi are clamped to [0, N].
    """
    t = tl.program_id(0) * TILE + tl.arange(0, TILE)
    k0 = t * 0
    k1 = k0 + N
    position = t + first
    behind_all = t < 0
    if PACKED:
        i = sequence_of(cu_ptr, t, sequences, STEPS)
        begin = tl.load(cu_ptr + i)
        end = tl.load(cu_ptr + i + 1)
        before = tl.load(cu_tokens_ptr + i + 1) - tl.load(cu_tokens_ptr + i) - (end - begin)
        position = tl.where(t >= begin, t - begin + before, -1)
        k0 = tl.minimum(tl.maximum(tl.load(cu_keys_ptr + i), 0), N)
        k1 = tl.minimum(tl.maximum(tl.load(cu_keys_ptr + i + 1), 0), N)
        behind_all = t >= tl.load(cu_ptr + sequences)
    seen = tl.maximum(position + (1 - BLOCK + STRIDE), 0) // STRIDE
    hi = k0 + tl.minimum(seen, tl.maximum(k1 - k0, 0))
    lo = k0
    if WINDOWED:
        lo = tl.maximum(k0, hi - window)
    if PACKED:
        last = tl.minimum(tl.maximum(tl.load(cu_keys_ptr + sequences), 0), N)
        lo = tl.where(behind_all, last, lo)
        hi = tl.where(behind_all, last, hi)
    tl.store(lo_ptr + t, lo, mask=t < T)
    tl.store(hi_ptr + t, hi, mask=t < T)
