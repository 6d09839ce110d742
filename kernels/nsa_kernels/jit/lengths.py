"""The numbers of tokens and compressed keys of a cache entry, read on the device."""

from __future__ import annotations

from .compat import tl, triton


@triton.jit
def tokens_of(lengths_ptr, entry, most):
    """Return the length of an entry, clamped to [0, most]."""
    return tl.minimum(tl.maximum(tl.load(lengths_ptr + entry), 0), most)


@triton.jit
def complete_keys(tokens, N, BLOCK: tl.constexpr, STRIDE: tl.constexpr):
    """Return how many compressed keys end within the first ``tokens`` tokens, at most N."""
    behind_first = tl.maximum(tokens, 0) + (STRIDE - BLOCK)
    return tl.minimum(tl.maximum(behind_first, 0) // STRIDE, N)
