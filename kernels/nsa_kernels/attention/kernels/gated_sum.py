"""The gated sum of the three branches (arXiv 2502.11089, equation 5), forward and backward.

Both are bound by memory: for each row of gates they move four rows of Dv elements. The backward
here is only for gates. A branch's backward multiplies the sum's gradient by the branch's gate.
"""

from __future__ import annotations

from ...jit.compat import narrow, tl, triton


@triton.jit
def _gate(gates_ptr, row, real, BRANCH: tl.constexpr):
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
    """Program (ROWS rows): store out [R,DV], the fp32 sum of gates [R,3] times branches [R,DV]."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = row < n_rows
    dv = tl.arange(0, BLOCK_DV)
    offset = row[:, None] * DV + dv[None, :]
    mask = real[:, None] & (dv[None, :] < DV)
    # All branches are loaded before the first product, so that the loads overlap.
    compressed = tl.load(cmp_ptr + offset, mask=mask, other=0.0)
    selected = tl.load(sel_ptr + offset, mask=mask, other=0.0)
    near = tl.load(win_ptr + offset, mask=mask, other=0.0)
    total = compressed.to(tl.float32) * _gate(gates_ptr, row, real, 0)[:, None]
    total += selected.to(tl.float32) * _gate(gates_ptr, row, real, 1)[:, None]
    total += near.to(tl.float32) * _gate(gates_ptr, row, real, 2)[:, None]
    tl.store(out_ptr + offset, narrow(total, out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _store_gate_gradient(
    d_gates_ptr,
    weight_ptr,
    rest_ptr,
    branch,
    grad,
    gates_ptr,
    row,
    to,
    real,
    BRANCH: tl.constexpr,
):
    """Store a gate's gradient. For the branch's backward, also store it and the gate in fp32."""
    d_gate = tl.sum(grad * branch.to(tl.float32), 1)
    tl.store(weight_ptr + to, _gate(gates_ptr, row, real, BRANCH), mask=real)
    tl.store(rest_ptr + to, d_gate, mask=real)
    tl.store(
        d_gates_ptr + row * 3 + BRANCH, narrow(d_gate, d_gates_ptr.dtype.element_ty), mask=real
    )


@triton.jit
def gates_backward_kernel(
    d_out_ptr,
    cmp_ptr,
    sel_ptr,
    win_ptr,
    gates_ptr,
    d_gates_ptr,
    cmp_weight_ptr,
    cmp_rest_ptr,
    sel_weight_ptr,
    sel_rest_ptr,
    win_weight_ptr,
    win_rest_ptr,
    n_rows,
    T,
    HQ,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Program (ROWS rows): store the gradients of gates [R,3], R = B * T * HQ.

    For the backward of each branch, store its gate and the gate's gradient in fp32: [B,HQ,T] for
    compressed keys and window, [R] for blocks. Gradients of the branches' outputs are not stored,
    since each is a gate times the gradient of the sum.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = row < n_rows
    dv = tl.arange(0, BLOCK_DV)
    offset = row[:, None] * DV + dv[None, :]
    mask = real[:, None] & (dv[None, :] < DV)
    grad = tl.load(d_out_ptr + offset, mask=mask, other=0.0).to(tl.float32)
    compressed = tl.load(cmp_ptr + offset, mask=mask, other=0.0)
    selected = tl.load(sel_ptr + offset, mask=mask, other=0.0)
    near = tl.load(win_ptr + offset, mask=mask, other=0.0)
    token = row // HQ
    to = (token // T * HQ + row % HQ) * T + token % T
    _store_gate_gradient(
        d_gates_ptr, cmp_weight_ptr, cmp_rest_ptr, compressed, grad, gates_ptr, row, to, real, 0
    )
    _store_gate_gradient(
        d_gates_ptr, sel_weight_ptr, sel_rest_ptr, selected, grad, gates_ptr, row, row, real, 1
    )
    _store_gate_gradient(
        d_gates_ptr, win_weight_ptr, win_rest_ptr, near, grad, gates_ptr, row, to, real, 2
    )
