"""``block_selection_attention``: every query attends to the blocks of keys that it chose.

Forward, backward and plan are custom operators, so torch.compile sees each of them as one call. The
backward uses the forward's plan, and layers with the same selection can share a plan.
"""

from __future__ import annotations

import torch

from ...launch.checks import check_whole, softmax_scale
from ...launch.mode import traced
from ...launch.operators import wants_gradient
from ...launch.replay import replayed
from .checks import OP, check_blocks, check_plan
from .config import (
    NO_CHUNK,
    WORKSPACE_BYTES,
    backward_config,
    backward_workspace,
    forward_workspace,
    query_major_wins,
    shape_of,
)
from .naive import naive_blocks
from .operators import block_major, results_of, run_block_major, run_plan, run_query_major
from .plan import BlockPlan, build_plan


def block_selection_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_indices: torch.Tensor,
    *,
    block_size: int = 64,
    sm_scale: float | None = None,
    cu_seqlens: torch.Tensor | None = None,
    plan: BlockPlan | None = None,
    workspace_bytes: int = WORKSPACE_BYTES,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attend causally to the chosen blocks of keys (arXiv 2502.11089, section 3.3.2).

    Query t sees the keys of the blocks ``block_indices[b, t, h]`` of its sequence, up to its own
    position. The HQ // H query heads of a group share a choice. Differentiable in q, k and v.

    Args:
        q: [B, T, HQ, D], float16, bfloat16 or float32 (float64: the plain torch path, for tests).
        k: [B, T, H, D]. v: [B, T, H, Dv]. D and Dv in 16..256, HQ a multiple of H.
        block_indices: int32 [B, T, H, S], counted from the start of the query's sequence. Negative
            indices, blocks that begin after the query and repetitions within a row are ignored.
        block_size: keys in a block, a power of two in 16..128.
        sm_scale: factor on q.k, positive; 1/sqrt(D) when None.
        cu_seqlens: int32 [sequences + 1], if B = 1 and several sequences are packed along T. Its
            values are never read on the host; tokens in no sequence give 0.
        plan: what ``plan_blocks`` returned for the same block_indices, block_size and cu_seqlens.
        workspace_bytes: bound of the memory besides arguments and results. It includes the lists of
            queries of each block: 0.5 GiB for a million tokens, 4 key heads and 16 blocks.
        return_lse: also return the log-sum-exp, which is not differentiable.

    Returns:
        out [B, T, HQ, Dv] in q's dtype; 0 if a query sees no key. With ``return_lse`` also lse
        float32 [B, T, HQ] (natural log; -inf without a key).

    Raises:
        TypeError, ValueError: arguments or the plan do not fit, the workspace is too small for one
            chunk of tokens, or tiles are too large for the GPU's shared memory.
    """
    without_values = traced(q)
    grad = wants_gradient(q, k, v)
    if plan is None and not grad and not without_values and q.dtype != torch.float64:
        out, lse = _launch(
            q, k, v, block_indices, cu_seqlens, block_size, sm_scale, workspace_bytes
        )
        return (out, lse) if return_lse else out
    check_blocks(q, k, v, block_indices, block_size, cu_seqlens)
    scale = softmax_scale(OP, q, sm_scale)
    check_whole(OP, "workspace_bytes", workspace_bytes, 0)
    if q.dtype == torch.float64:
        out, lse = naive_blocks(q, k, v, block_indices, block_size, scale, cu_seqlens)
        return (out, lse) if return_lse else out
    shape = shape_of(q, k, v, block_indices.shape[3], block_size)
    if shape.n == 0:
        # Return an empty result that autograd connects to the inputs.
        out = q.new_empty((*q.shape[:3], v.shape[3])) + sum(x.sum() for x in (q, k, v))
        return (out, q.new_empty(q.shape[:3], dtype=torch.float32)) if return_lse else out
    if grad and not without_values:
        # Refuse now, and not after the forward, what the backward does not support.
        backward_config(shape)
    if plan is None and not grad and query_major_wins(shape):
        query_major = torch.ops.nsa_kernels.block_query_major
        out, lse = query_major(q, k, v, block_indices, cu_seqlens, block_size, scale)
    else:
        if plan is None:
            plan = plan_blocks(
                q, k, v, block_indices, block_size=block_size, cu_seqlens=cu_seqlens,
                workspace_bytes=workspace_bytes, backward=grad,
            )  # fmt: skip
        else:
            check_plan(plan, block_indices, block_size, cu_seqlens)
        out, lse = block_major(q, k, v, *plan.lists, block_size, scale, workspace_bytes)
    return (out, lse) if return_lse else out


@replayed
def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_indices: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    block_size: int,
    sm_scale: float | None,
    workspace_bytes: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out and lse, without a gradient. The launches are not called as operators of torch,
    since such calls take longer than the launches themselves."""
    check_blocks(q, k, v, block_indices, block_size, cu_seqlens)
    scale = softmax_scale(OP, q, sm_scale)
    check_whole(OP, "workspace_bytes", workspace_bytes, 0)
    shape = shape_of(q, k, v, block_indices.shape[3], block_size)
    if shape.n == 0:
        return results_of(q, v)
    if query_major_wins(shape):
        return run_query_major(q, k, v, block_indices, cu_seqlens, block_size, scale)
    chunk = forward_workspace(shape, workspace_bytes).chunk
    plan = build_plan(block_indices, cu_seqlens, block_size, chunk, cleared=False)
    return run_block_major(q, k, v, *plan.lists, block_size, scale, workspace_bytes)


def plan_blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_indices: torch.Tensor,
    *,
    block_size: int = 64,
    cu_seqlens: torch.Tensor | None = None,
    workspace_bytes: int = WORKSPACE_BYTES,
    backward: bool = True,
) -> BlockPlan:
    """Return, for each block, the queries that chose it, for calls that share ``block_indices``.

    Args:
        q, k, v, block_indices, block_size, cu_seqlens, workspace_bytes: as
            ``block_selection_attention``; only the shapes of q, k and v count.
        backward: whether the calls will be differentiated. This decides the size of chunks.
    """
    check_blocks(q, k, v, block_indices, block_size, cu_seqlens)
    check_whole(OP, "workspace_bytes", workspace_bytes, 0)
    shape = shape_of(q, k, v, block_indices.shape[3], block_size)
    room = backward_workspace if backward else forward_workspace
    chunk = room(shape, workspace_bytes).chunk if shape.n else NO_CHUNK
    plan = torch.ops.nsa_kernels.block_plan if traced(block_indices) else run_plan
    entries, places, first, count, edges = plan(block_indices, cu_seqlens, block_size, chunk)
    return BlockPlan(entries, places, first, count, edges, block_size)
