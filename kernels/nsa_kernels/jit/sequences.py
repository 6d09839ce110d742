"""Find the packed sequence that a token belongs to."""

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
