"""Kernels behind a `torch.library.custom_op`, in both directions, and one that has no backward."""

import torch
import triton
import triton.language as tl

from nsabench import implementation


@triton.jit
def forward_kernel(out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.float16))


@triton.jit
def backward_kernel(grad_ptr, BLOCK: tl.constexpr):
    tl.store(grad_ptr + tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.float16))


@torch.library.custom_op("nsabench_preflight_test::attend", mutates_args=())
def attend(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    assert q.is_cuda and torch.cuda.get_device_capability(q.device) == (8, 9)
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
    forward_kernel[(1,)](out, BLOCK=64)
    return out


@attend.register_fake
def _(q, v):
    return torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)


def backward(ctx, grad):
    assert grad.is_cuda
    backward_kernel[(1,)](grad, BLOCK=128)
    return grad.new_empty(ctx.shapes[0]), grad.new_empty(ctx.shapes[1])


def setup(ctx, inputs, output):
    ctx.shapes = [t.shape for t in inputs]


attend.register_autograd(backward, setup_context=setup)


@implementation(op="selection_ranges", name="operator")
def operator(q, k, v, ranges, *, sm_scale, selected_len):
    return attend(q, v)


@implementation(op="selection_ranges", name="reads_values")
def reads_values(q, k, v, ranges, *, sm_scale, selected_len):
    return attend(q, v) if int(ranges.max()) > 0 else q


@implementation(op="selection_ranges", name="forward_only")
def forward_only(q, k, v, ranges, *, sm_scale, selected_len):
    return attend(q.detach(), v.detach())
