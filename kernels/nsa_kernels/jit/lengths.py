"""How many tokens, and compressed keys, an entry of a cache holds, read on the device."""

from __future__ import annotations

from .compat import tl, triton


@triton.jit
def tokens_of(lengths_ptr, entry, most):
    """The length of an entry, clamped to [0, most]."""
    return tl.minimum(tl.maximum(tl.load(lengths_ptr + entry), 0), most)


@triton.jit
def complete_keys(tokens, N, BLOCK: tl.constexpr, STRIDE: tl.constexpr):
    """The compressed keys, of N there is room for, whose BLOCK tokens are among ``tokens``."""
    behind_first = tl.maximum(tokens, 0) + (STRIDE - BLOCK)
    return tl.minimum(tl.maximum(behind_first, 0) // STRIDE, N)
