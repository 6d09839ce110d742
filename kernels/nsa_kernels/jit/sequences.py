"""Find the packed sequence of a token, or how many tokens and keys a cache entry has."""

from __future__ import annotations

from .compat import tl, triton


@triton.jit
def sequence_of(cu_ptr, t, sequences, STEPS: tl.constexpr):
    """Return the last sequence that begins at or before each token of ``t``, or 0 if none does."""
    low = tl.zeros_like(t)
    high = low + sequences
    for _ in tl.static_range(STEPS):
        middle = (low + high) // 2
        right = tl.load(cu_ptr + middle) <= t
        low = tl.where(right, middle, low)
        high = tl.where(right, high, middle)
    return low


@triton.jit
def tokens_of(lengths_ptr, entry, most):
    """Return the length of an entry, clamped to [0, most]."""
    return tl.minimum(tl.maximum(tl.load(lengths_ptr + entry), 0), most)


@triton.jit
def complete_keys(tokens, N, BLOCK: tl.constexpr, STRIDE: tl.constexpr):
    """Return how many compressed keys end within the first ``tokens`` tokens, at most N."""
    behind_first = tl.maximum(tokens, 0) + (STRIDE - BLOCK)
    return tl.minimum(tl.maximum(behind_first, 0) // STRIDE, N)
