"""Two kernels, one of which calls another function."""

import torch
import triton
import triton.language as tl

from nsabench import implementation


@triton.jit
def scaled(x):
    return x * 2.0


@triton.jit
def direct(x_ptr):
    at = tl.arange(0, 16)
    tl.store(x_ptr + at, tl.load(x_ptr + at) + 1)


@triton.jit
def calls(x_ptr):
    at = tl.arange(0, 16)
    tl.store(x_ptr + at, scaled(tl.load(x_ptr + at)))


@implementation(op="selection_rows", name="both", devices=("cuda",))
def both(q, k, v, *, sm_scale):
    direct[(1,)](q)
    calls[(1,)](q)
    return torch.empty_like(q)
