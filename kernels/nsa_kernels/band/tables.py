"""The tables of a band (`forward.py`) over packed sequences: the keys of each query, and back."""

from __future__ import annotations

from ..jit.compat import tl, triton
from ..selection.blocks.plan import sequence_of


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
    """Program (TILE queries and TILE keys): query t sees keys lo[t] up to hi[t], [T]; key j is
    seen by no other queries than begin[j] up to end[j], [N]. What lies behind the last sequence
    sees nothing and is not seen.

    None of the four decreases. Values of cu_keys are clamped to [0, N], as all that is written is.
    """
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    last_query = tl.load(cu_ptr + sequences)
    last_key = tl.minimum(tl.maximum(tl.load(cu_keys_ptr + sequences), 0), N)

    i = sequence_of(cu_ptr, at, sequences, STEPS)
    k0 = tl.minimum(tl.maximum(tl.load(cu_keys_ptr + i), 0), N)
    k1 = tl.minimum(tl.maximum(tl.load(cu_keys_ptr + i + 1), 0), N)
    seen = tl.maximum(at - tl.load(cu_ptr + i) + (1 - BLOCK + STRIDE), 0) // STRIDE
    hi = k0 + tl.minimum(seen, k1 - k0)
    lo = k0
    if WINDOWED:
        lo = tl.maximum(k0, hi - window)
    tl.store(lo_ptr + at, tl.where(at < last_query, lo, last_key), mask=at < T)
    tl.store(hi_ptr + at, tl.where(at < last_query, hi, last_key), mask=at < T)

    i = sequence_of(cu_keys_ptr, at, sequences, STEPS)
    k0 = tl.minimum(tl.maximum(tl.load(cu_keys_ptr + i), 0), N)
    behind = tl.load(cu_ptr + i + 1).to(tl.int64)
    complete = tl.load(cu_ptr + i) + (at - k0).to(tl.int64) * STRIDE + (BLOCK - 1)
    end = behind
    if WINDOWED:
        end = tl.minimum(behind, complete + window * STRIDE)
    begin = tl.where(at < last_key, tl.minimum(complete, behind), last_query)
    end = tl.where(at < last_key, end, last_query)
    tl.store(begin_ptr + at, tl.minimum(tl.maximum(begin, 0), T).to(tl.int32), mask=at < N)
    tl.store(end_ptr + at, tl.minimum(tl.maximum(end, 0), T).to(tl.int32), mask=at < N)
