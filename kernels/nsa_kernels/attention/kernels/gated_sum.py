"""The gated sum of the three branches (arXiv 2502.11089, equation 5), forward and backward.

Memory is all it takes: forward moves four rows of Dv, backward seven, and neither reads one twice.
"""

from __future__ import annotations

from ...jit.compat import narrow, tl, triton


@triton.jit
def _gate(gates_ptr, row, real, BRANCH: tl.constexpr):
    """The gates of one branch, fp32 [ROWS]."""
    return tl.load(gates_ptr + row * 3 + BRANCH, mask=real, other=0.0).to(tl.float32)


@triton.jit
def sum_branches_kernel(
    out_ptr,
    cmp_ptr,
    sel_ptr,
    win_ptr,
    gates_ptr,
    n_rows,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Program (ROWS rows): out [R,DV], gates [R,3] times the branches [R,DV], summed in fp32."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = row < n_rows
    dv = tl.arange(0, BLOCK_DV)
    offset = row[:, None] * DV + dv[None, :]
    mask = real[:, None] & (dv[None, :] < DV)
    # All loads before the first product, so that they are on their way together.
    compressed = tl.load(cmp_ptr + offset, mask=mask, other=0.0)
    selected = tl.load(sel_ptr + offset, mask=mask, other=0.0)
    near = tl.load(win_ptr + offset, mask=mask, other=0.0)
    total = compressed.to(tl.float32) * _gate(gates_ptr, row, real, 0)[:, None]
    total += selected.to(tl.float32) * _gate(gates_ptr, row, real, 1)[:, None]
    total += near.to(tl.float32) * _gate(gates_ptr, row, real, 2)[:, None]
    tl.store(out_ptr + offset, narrow(total, out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _of_branch(
    d_branch_ptr,
    d_gates_ptr,
    branch,
    grad,
    gates_ptr,
    row,
    offset,
    real,
    mask,
    BRANCH: tl.constexpr,
):
    """Writes what one branch and its gate get of the gradient ``grad`` fp32 [ROWS, BLOCK_DV]."""
    gate = _gate(gates_ptr, row, real, BRANCH)
    tl.store(
        d_branch_ptr + offset,
        narrow(grad * gate[:, None], d_branch_ptr.dtype.element_ty),
        mask=mask,
    )
    d_gate = tl.sum(grad * branch.to(tl.float32), 1)
    tl.store(
        d_gates_ptr + row * 3 + BRANCH, narrow(d_gate, d_gates_ptr.dtype.element_ty), mask=real
    )


@triton.jit
def sum_branches_backward_kernel(
    d_out_ptr,
    cmp_ptr,
    sel_ptr,
    win_ptr,
    gates_ptr,
    d_cmp_ptr,
    d_sel_ptr,
    d_win_ptr,
    d_gates_ptr,
    n_rows,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Program (ROWS rows): gradients of the three branches [R,DV] and of gates [R,3]."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = row < n_rows
    dv = tl.arange(0, BLOCK_DV)
    offset = row[:, None] * DV + dv[None, :]
    mask = real[:, None] & (dv[None, :] < DV)
    grad = tl.load(d_out_ptr + offset, mask=mask, other=0.0).to(tl.float32)
    compressed = tl.load(cmp_ptr + offset, mask=mask, other=0.0)
    selected = tl.load(sel_ptr + offset, mask=mask, other=0.0)
    near = tl.load(win_ptr + offset, mask=mask, other=0.0)
    _of_branch(d_cmp_ptr, d_gates_ptr, compressed, grad, gates_ptr, row, offset, real, mask, 0)
    _of_branch(d_sel_ptr, d_gates_ptr, selected, grad, gates_ptr, row, offset, real, mask, 1)
    _of_branch(d_win_ptr, d_gates_ptr, near, grad, gates_ptr, row, offset, real, mask, 2)
