"""Write zeros by a kernel: ``launch/replay.py`` cannot repeat a call in which torch does it."""

from __future__ import annotations

from .compat import tl, triton


@triton.jit
def clear_kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.zeros([BLOCK], x_ptr.dtype.element_ty), mask=at < n)
