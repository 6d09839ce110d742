"""The launches of NSA attention, forward and backward. The caller has compressed the keys.

The forward attends to the compressed keys, scores blocks, selects blocks, attends to the window,
and attends to the selected blocks. The kernel that merges the results of blocks, or ``launch_sum``,
writes the gated sum. The backward begins with the gradients of the gates. Then the kernels of each
branch multiply the sum's gradient by the branch's gate. All branches add to one dq. The blocks add
their dk and dv to the dk and dv of the window (docs/explanation/whole-attention.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..band.attend import band_of
from ..band.backward import band_backward
from ..band.forward import band_forward
from ..band.geometry import Band
from ..launch.gated import Gated
from ..launch.sizes import scale_log2
from ..scoring.block_scores import block_scores
from ..scoring.top_n import launch_top_n
from ..selection.blocks.backward import block_major_backward
from ..selection.blocks.config import (
    WORKSPACE_BYTES,
    backward_config,
    backward_workspace,
    forward_config,
    forward_workspace,
    heads_at_once,
    query_major_wins,
    shape_of,
)
from ..selection.blocks.forward import GatedSum, block_major_forward, query_major_forward
from ..selection.blocks.plan import BlockPlan, build_plan
from .branches import launch_gates_backward, launch_sum


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that ``nsa_attention`` takes, and the scale of logits."""

    block: int
    stride: int
    block_size: int
    n_selected: int
    window: int
    sm_scale: float


class Kept(NamedTuple):
    """Results of the forward that the backward needs.

    Outputs of the branches are [B, T, HQ, Dv]. Their LSEs are float32 [B, HQ, T], and [B, T, HQ]
    for blocks. All further fields are the tensors of a ``BlockPlan``.
    """

    compressed: torch.Tensor
    compressed_lse: torch.Tensor
    near: torch.Tensor
    near_lse: torch.Tensor
    selected: torch.Tensor
    selected_lse: torch.Tensor
    entries: torch.Tensor
    places: torch.Tensor
    first: torch.Tensor
    count: torch.Tensor
    edges: torch.Tensor


def _bands(
    q: torch.Tensor,
    k: torch.Tensor,
    k_cmp: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
    sizes: Sizes,
) -> tuple[Band, Band]:
    return (
        band_of(q, k_cmp.shape[1], cu_seqlens, cu_keys, sizes.block, sizes.stride, 0),
        band_of(q, k.shape[1], cu_seqlens, cu_seqlens, 1, 1, sizes.window),
    )


def _flat(x: torch.Tensor) -> torch.Tensor:
    """Return [B, T, …] as [B * T, …]: a view if the strides allow it, else a copy."""
    return x.flatten(0, 1)


def launch_whole(
    sizes: Sizes,
    kept: bool,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
) -> tuple[torch.Tensor, Kept | None]:
    """Return the gated sum [B, T, HQ, Dv] and, if ``kept``, what its backward needs. B * T > 0."""
    of_keys, of_window = _bands(q, k, k_cmp, cu_seqlens, cu_keys, sizes)
    compressed, compressed_lse = band_forward(q, k_cmp, v_cmp, of_keys, sizes.sm_scale)
    scores = block_scores(
        *(q, k_cmp, compressed_lse, of_keys, sizes.block_size, sizes.sm_scale),
        *(cu_seqlens, cu_keys),
        visible=True,
    )
    chosen = launch_top_n(
        scores, sizes.n_selected, sizes.block_size, 0, spans=False, cu_seqlens=cu_seqlens
    )
    del scores  # the largest tensor, not needed any more
    near, near_lse = band_forward(q, k, v, of_window, sizes.sm_scale)
    gates = gates.contiguous()
    shape = shape_of(q, k, v, sizes.n_selected, sizes.block_size)
    flat = (_flat(q), _flat(k), _flat(v))
    log2 = scale_log2(sizes.sm_scale, q.shape[3])
    selected, lse = near, torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if not kept and query_major_wins(shape):
        selected = torch.empty(near.shape, dtype=near.dtype, device=near.device)
        query_major_forward(
            *(*flat, _flat(chosen), cu_seqlens, q.shape[1], sizes.block_size, log2),
            *(_flat(selected), _flat(lse)),
        )
        return launch_sum(compressed, selected, near, gates), None
    room = backward_workspace if kept else forward_workspace
    chunk = room(shape, WORKSPACE_BYTES).chunk
    # If kept, the plan is a result of an operator, which must not depend on uninitialised memory.
    plan = build_plan(chosen, cu_seqlens, sizes.block_size, chunk, cleared=kept, unique=True)
    # If no backward needs the window's output, the sum overwrites it.
    out = torch.empty(near.shape, dtype=near.dtype, device=near.device) if kept else near
    if kept:
        selected = torch.empty(near.shape, dtype=near.dtype, device=near.device)
    summed = GatedSum(_flat(out), _flat(compressed), _flat(near), _flat(gates), kept)
    block_major_forward(
        *(*flat, plan, log2, _flat(selected), _flat(lse)),
        heads_at_once(shape, plan.chunk, forward_workspace(shape, WORKSPACE_BYTES)),
        forward_config(shape),
        summed,
    )
    if not kept:
        return out, None
    return out, Kept(compressed, compressed_lse, near, near_lse, selected, lse, *plan.lists)


def launch_whole_backward(
    sizes: Sizes,
    kept: Kept,
    d_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """Return dq, dk, dv, dk_cmp, dv_cmp and d_gates, contiguous. d_out and gates are contiguous."""
    of_keys, of_window = _bands(q, k, k_cmp, cu_seqlens, cu_keys, sizes)
    of_gates = launch_gates_backward(d_out, kept.compressed, kept.selected, kept.near, gates)
    dq, dk_cmp, dv_cmp = band_backward(
        *(q, k_cmp, v_cmp, kept.compressed, kept.compressed_lse, d_out, None),
        *(of_keys, sizes.sm_scale),
        gated=Gated(*of_gates.compressed, None),
    )
    dq, dk, dv = band_backward(
        *(q, k, v, kept.near, kept.near_lse, d_out, None, of_window, sizes.sm_scale),
        gated=Gated(*of_gates.near, dq),
    )
    shape = shape_of(q, k, v, sizes.n_selected, sizes.block_size)
    plan = BlockPlan(*kept[6:], sizes.block_size)
    block_major_backward(
        *(_flat(q), _flat(k), _flat(v), _flat(kept.selected), _flat(kept.selected_lse)),
        *(_flat(d_out), plan, sizes.sm_scale),
        heads=heads_at_once(shape, plan.chunk, backward_workspace(shape, WORKSPACE_BYTES)),
        config=backward_config(shape),
        gated=Gated(*of_gates.selected, _flat(dq)),
        onto=(_flat(dk), _flat(dv)),
    )
    return dq, dk, dv, dk_cmp, dv_cmp, of_gates.gates
