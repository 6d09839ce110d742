"""The kernel that merges the shares of three branches, and adds up the branches by gates."""

from __future__ import annotations

from ....jit.compat import narrow, tl, triton, wait_for_last_launch
from ....jit.merge import NOT_THERE


@triton.jit
def _weights(plse, live, gate):
    """Return the weights of shares with log2 LSEs ``plse`` in a branch, which are ``live``."""
    top = tl.maximum(tl.max(tl.where(live, plse, NOT_THERE), 0), NOT_THERE)
    weight = tl.where(live, tl.exp2(plse - top), 0.0)
    total = tl.sum(weight, 0)
    return weight * (gate / tl.where(total > 0, total, 1.0))


@triton.jit
def decode_merge_kernel(
    out_ptr,
    gates_ptr,
    cmp_part_ptr,
    cmp_plse_ptr,
    spans_part_ptr,
    spans_plse_ptr,
    GROUP,
    cmp_shares,
    near_shares,
    spans_shares,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    CMP_BLOCK_S: tl.constexpr,
    SPANS_BLOCK_S: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (batch and key head, head of its group): add up the branches, weighted by gates, each
    merged of its shares: ``part`` fp32 [rows, shares, GROUP, DV] and ``plse`` fp32 [rows, shares,
    GROUP]. The first ``near_shares`` of the spans are of the window."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    offset = row * GROUP + head
    cols = tl.arange(0, BLOCK_DV)
    cmp_gate = tl.load(gates_ptr + offset * 3).to(tl.float32)
    chosen_gate = tl.load(gates_ptr + offset * 3 + 1).to(tl.float32)
    near_gate = tl.load(gates_ptr + offset * 3 + 2).to(tl.float32)
    cmp = tl.arange(0, CMP_BLOCK_S)
    cmp_live = cmp < cmp_shares
    cmp_slots = (row * cmp_shares + cmp) * GROUP + head
    spans = tl.arange(0, SPANS_BLOCK_S)
    spans_live = spans < spans_shares
    spans_slots = (row * spans_shares + spans) * GROUP + head
    wait_for_last_launch(PDL)
    cmp_parts = tl.load(
        cmp_part_ptr + cmp_slots[:, None] * DV + cols[None, :],
        mask=cmp_live[:, None] & (cols < DV)[None, :],
        other=0.0,
    )
    spans_parts = tl.load(
        spans_part_ptr + spans_slots[:, None] * DV + cols[None, :],
        mask=spans_live[:, None] & (cols < DV)[None, :],
        other=0.0,
    )
    cmp_plse = tl.load(cmp_plse_ptr + cmp_slots, mask=cmp_live, other=NOT_THERE)
    spans_plse = tl.load(spans_plse_ptr + spans_slots, mask=spans_live, other=NOT_THERE)
    weights = _weights(spans_plse, spans_live & (spans < near_shares), near_gate)
    weights += _weights(spans_plse, spans_live & (spans >= near_shares), chosen_gate)
    total = tl.sum(spans_parts * weights[:, None], 0)
    total += tl.sum(cmp_parts * _weights(cmp_plse, cmp_live, cmp_gate)[:, None], 0)
    tl.store(out_ptr + offset * DV + cols, narrow(total, out_ptr.dtype.element_ty), mask=cols < DV)
