"""Kernels that fail to compile or to be called, each in another way."""

import torch
import triton
import triton.language as tl

from nsabench import implementation


@triton.jit
def tensor_bound_kernel(out_ptr, length, BLOCK: tl.constexpr):
    bound = tl.maximum(tl.full((1,), 0, tl.int32), length)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, bound, BLOCK):
        total += start
    tl.store(out_ptr + tl.arange(0, BLOCK), total)


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 128) for w in (1, 4)], [])
@triton.jit
def tuned_kernel(out_ptr, length, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.zeros((BLOCK,), tl.float16), mask=at < length)


@triton.jit
def typo_kernel(out_ptr):
    tl.store(out_ptr, no_such_name)  # noqa: F821


@implementation(op="selection_rows", name="tensor_bound", role="candidate")
def tensor_bound(q, k, v, *, sm_scale):
    assert q.is_cuda and q.device.type == "cuda"
    out = torch.empty(q.shape[0], q.shape[1], v.shape[2], device=q.device, dtype=q.dtype)
    tensor_bound_kernel[(1,)](out, k.shape[1], BLOCK=16)
    return out


@implementation(op="selection_rows", name="tuned", role="candidate")
def tuned(q, k, v, *, sm_scale):
    out = torch.empty_like(q)
    if float(q[0, 0, 0]) > 1e9:  # reads a value, which shapes alone cannot give
        return out
    assert torch.cuda.get_device_properties(q.device).multi_processor_count > 80
    tuned_kernel[(1,)](out, 16)
    return out


@implementation(op="selection_rows", name="typo", role="candidate")
def typo(q, k, v, *, sm_scale):
    typo_kernel[(1,)](q)
    return q


@implementation(op="selection_rows", name="eager", role="candidate")
def eager(q, k, v, *, sm_scale):
    return torch.softmax(torch.einsum("nhd,nld->nhl", q, k) * sm_scale, -1) @ v


@implementation(op="selection_rows", name="raises", role="candidate")
def raises(q, k, v, *, sm_scale):
    raise ValueError("not today")


@implementation(op="selection_rows", name="dies", role="candidate")
def dies(q, k, v, *, sm_scale):
    import os

    os.abort()
