"""``block_selection_attention``: every query attends to the blocks of keys that it chose.

Forward and backward are custom operators, so that torch.compile and CUDA graphs see them whole; the
plan is an operator of its own, so that layers which share a selection, and the backward, share it.
"""

from __future__ import annotations

import torch

from ...launch.checks import DTYPES, check_qkv, require, scale_log2
from ...launch.fakes import gradients
from .backward import block_major_backward
from .config import (
    WORKSPACE_BYTES,
    BlockShape,
    backward_config,
    backward_workspace,
    forward_config,
    forward_workspace,
    heads_at_once,
    query_major_wins,
)
from .forward import block_major_forward
from .naive import block_selection_reference
from .plan import BlockPlan, build_plan, plan_sizes
from .query_major import query_major_forward

BLOCK_SIZES = (16, 32, 64, 128)


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
    """Causal attention over the chosen blocks of keys (arXiv 2502.11089, section 3.3.2).

    Query t sees keys up to its own position of blocks ``block_indices[b, t, h]`` of its sequence;
    the HQ // H query heads of a group share its choice. Differentiable in q, k and v.

    Args:
        q: [B, T, HQ, D], float16, bfloat16 or float32 (float64: the plain torch path, for tests).
        k: [B, T, H, D]. v: [B, T, H, Dv]. D and Dv in 16..256, HQ a multiple of H.
        block_indices: int32 [B, T, H, S], counted from the start of the query's sequence. Negative
            ones, blocks in the future and repetitions within a row count for nothing.
        block_size: keys a block, a power of two in 16..128.
        sm_scale: factor on q.k, positive; 1/sqrt(D) when None.
        cu_seqlens: int32 [sequences + 1], when B = 1 and T packs several sequences. Its values are
            never read on the host; tokens in no sequence give 0.
        plan: what ``plan_blocks`` made of the same block_indices, block_size and cu_seqlens.
        workspace_bytes: bound of the memory needed besides arguments and results; lists of which
            query a block belongs to come on top (half as much again at a million tokens).
        return_lse: also return the log-sum-exp, not differentiable.

    Returns:
        out [B, T, HQ, Dv] in q's dtype; 0 where a query sees no key. With ``return_lse`` also lse
        float32 [B, T, HQ] (natural log; -inf without a key).

    Raises:
        TypeError, ValueError: arguments that do not fit, a plan of another call, a workspace too
            small for one chunk, tiles too large for the GPU's shared memory.
    """
    _check(q, k, v, block_indices, block_size, cu_seqlens)
    scale = q.shape[-1] ** -0.5 if sm_scale is None else float(sm_scale)
    require(scale > 0, f"block_selection_attention: sm_scale must be positive, got {scale}")
    if q.dtype == torch.float64:
        out, lse = block_selection_reference(q, k, v, block_indices, block_size, scale, cu_seqlens)
        return (out, lse) if return_lse else out
    shape = _shape(q, k, v, block_indices, block_size)
    grad = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if grad and not torch.compiler.is_compiling():
        # What the backward does not take is said now, not after the forward.
        backward_config(shape)
    if plan is None and not grad and query_major_wins(shape):
        # Without the dispatcher, which would take longer than the kernel.
        compiling = torch.compiler.is_compiling()
        call = torch.ops.nsa_kernels.block_query_major if compiling else _run_query_major
        out, lse = call(q, k, v, block_indices, cu_seqlens, block_size, scale)
    else:
        if plan is None:
            plan = plan_blocks(
                q, k, v, block_indices, block_size=block_size, cu_seqlens=cu_seqlens,
                workspace_bytes=workspace_bytes, backward=grad,
            )  # fmt: skip
        else:
            _check_plan(plan, block_indices, block_size, cu_seqlens)
        out, lse = torch.ops.nsa_kernels.block_major(
            q,
            k,
            v,
            plan.entries,
            plan.places,
            plan.first,
            plan.count,
            plan.edges,
            block_size,
            scale,
            workspace_bytes,
        )
    return (out, lse) if return_lse else out


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
    """The index of who chose which block, for calls that share ``block_indices``.

    Args:
        q, k, v, block_indices, block_size, cu_seqlens, workspace_bytes: as
            ``block_selection_attention``; only the shapes of q, k and v count.
        backward: whether the calls will be differentiated, which decides the size of its chunks.
    """
    _check(q, k, v, block_indices, block_size, cu_seqlens)
    shape = _shape(q, k, v, block_indices, block_size)
    room = backward_workspace if backward else forward_workspace
    chunk = room(shape, workspace_bytes).chunk
    lists = torch.ops.nsa_kernels.block_plan(block_indices, cu_seqlens, block_size, chunk)
    return BlockPlan(*lists, block_size=block_size)


def _shape(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, index: torch.Tensor, block_size: int
) -> BlockShape:
    return BlockShape(
        n=q.shape[0] * q.shape[1],
        hq=q.shape[2],
        h=k.shape[2],
        s=index.shape[3],
        d=q.shape[3],
        dv=v.shape[3],
        block_size=block_size,
        dtype=q.dtype,
        device=q.device,
    )


def _check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    index: torch.Tensor,
    block_size: int,
    cu: torch.Tensor | None,
) -> None:
    op = "block_selection_attention"
    check_qkv(op, q, k, v, (*DTYPES, torch.float64))
    if not (
        q.dim() == k.dim() == v.dim() == index.dim() == 4
        and k.shape[:3] == v.shape[:3] == index.shape[:3]
        and q.shape[:2] == k.shape[:2]
        and k.shape[2] >= 1
        and q.shape[2] % k.shape[2] == 0
        and min(q.shape) >= 1
        and index.shape[3] >= 1
    ):
        raise ValueError(
            f"{op}: expected q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv], block_indices [B,T,H,S] with "
            f"HQ a multiple of H and nothing empty; got {tuple(q.shape)}, {tuple(k.shape)}, "
            f"{tuple(v.shape)}, {tuple(index.shape)}"
        )
    if index.dtype != torch.int32:
        raise TypeError(
            f"{op}: block_indices must be int32, got {index.dtype}; use .to(torch.int32)"
        )
    require(index.device == q.device, f"{op}: block_indices is on {index.device}, q on {q.device}")
    require(
        block_size in BLOCK_SIZES,
        f"{op}: block_size must be one of {BLOCK_SIZES}; got {block_size}",
    )
    tokens = q.shape[0] * q.shape[1]
    require(tokens < 1 << 30, f"{op}: {tokens} tokens are more than int32 positions can count")
    for name, x in (("q", q), ("k", k), ("v", v), ("block_indices", index)):
        require(
            x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1),
            f"{op}: batch and time of {name} must follow one another in memory; use .contiguous()",
        )
    if cu is not None:
        if cu.dtype != torch.int32:
            raise TypeError(f"{op}: cu_seqlens must be int32, got {cu.dtype}")
        require(
            q.shape[0] == 1 and cu.dim() == 1 and cu.numel() >= 2 and cu.is_contiguous(),
            f"{op}: cu_seqlens packs sequences along T: B must be 1 and cu_seqlens contiguous "
            f"[sequences + 1]; got B={q.shape[0]}, {tuple(cu.shape)}",
        )
        require(cu.device == q.device, f"{op}: cu_seqlens is on {cu.device}, q on {q.device}")


def _check_plan(
    plan: BlockPlan, index: torch.Tensor, block_size: int, cu: torch.Tensor | None
) -> None:
    lists = (plan.entries, plan.places, plan.first, plan.edges)
    sequences = None if cu is None else cu.numel() - 1
    require(
        plan.block_size == block_size
        and plan.places.shape[2] == index.shape[3]
        and tuple(x.shape for x in lists)
        == plan_sizes(index.shape, sequences, block_size, plan.chunk)
        and plan.places.device == index.device,
        f"block_selection_attention: the plan (block_size {plan.block_size}, places "
        f"{tuple(plan.places.shape)} on {plan.places.device}) is not one of block_indices "
        f"{tuple(index.shape)} on {index.device}, these cu_seqlens and block_size {block_size}; "
        "make it by plan_blocks of the same arguments",
    )


def _flat(x: torch.Tensor) -> torch.Tensor:
    """[B, T, …] as [B * T, …] without a copy."""
    return x.view(x.shape[0] * x.shape[1], *x.shape[2:])


def _results(q: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    b, t, hq, _ = q.shape
    out = torch.empty((b, t, hq, v.shape[3]), dtype=q.dtype, device=q.device)
    return out, torch.empty((b, t, hq), dtype=torch.float32, device=q.device)


@torch.library.custom_op("nsa_kernels::block_plan", mutates_args=())
def _plan(
    block_indices: torch.Tensor, cu_seqlens: torch.Tensor | None, block_size: int, chunk: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    plan = build_plan(block_indices, cu_seqlens, block_size, chunk)
    return plan.entries, plan.places, plan.first, plan.count, plan.edges


@_plan.register_fake
def _(
    block_indices: torch.Tensor, cu_seqlens: torch.Tensor | None, block_size: int, chunk: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    sequences = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    entries, places, first, edges = (
        block_indices.new_empty(size)
        for size in plan_sizes(block_indices.shape, sequences, block_size, chunk)
    )
    return entries, places, first, torch.empty_like(first), edges


def _run_query_major(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_indices: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    block_size: int,
    sm_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _results(q, v)
    query_major_forward(
        _flat(q),
        _flat(k),
        _flat(v),
        _flat(block_indices),
        cu_seqlens,
        q.shape[1],
        block_size,
        scale_log2(sm_scale, q.shape[3]),
        _flat(out),
        _flat(lse),
    )
    return out, lse


_query_major = torch.library.custom_op(
    "nsa_kernels::block_query_major", _run_query_major, mutates_args=()
)


_query_major.register_fake(lambda q, k, v, *others: _results(q, v))


@torch.library.custom_op("nsa_kernels::block_major", mutates_args=())
def _block_major(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    entries: torch.Tensor,
    places: torch.Tensor,
    first: torch.Tensor,
    count: torch.Tensor,
    edges: torch.Tensor,
    block_size: int,
    sm_scale: float,
    workspace_bytes: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _results(q, v)
    plan = BlockPlan(entries, places, first, count, edges, block_size)
    shape = _shape(q, k, v, places.view(*k.shape[:3], -1), block_size)
    block_major_forward(
        _flat(q),
        _flat(k),
        _flat(v),
        plan,
        scale_log2(sm_scale, q.shape[3]),
        _flat(out),
        _flat(lse),
        heads_at_once(shape, plan.chunk, forward_workspace(shape, workspace_bytes)),
        forward_config(shape),
    )
    return out, lse


_block_major.register_fake(lambda q, k, v, *others: _results(q, v))


@torch.library.custom_op("nsa_kernels::block_major_backward", mutates_args=())
def _backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    entries: torch.Tensor,
    places: torch.Tensor,
    first: torch.Tensor,
    count: torch.Tensor,
    edges: torch.Tensor,
    block_size: int,
    sm_scale: float,
    workspace_bytes: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    plan = BlockPlan(entries, places, first, count, edges, block_size)
    shape = _shape(q, k, v, places.view(*k.shape[:3], -1), block_size)
    dq, dk, dv = block_major_backward(
        _flat(q),
        _flat(k),
        _flat(v),
        _flat(out),
        _flat(lse),
        # A gradient may come expanded from a sum.
        _flat(d_out.contiguous()),
        plan,
        sm_scale,
        heads_at_once(shape, plan.chunk, backward_workspace(shape, workspace_bytes)),
        backward_config(shape),
    )
    return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)


_backward.register_fake(gradients)


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple, output: tuple) -> None:  # type: ignore[type-arg]
    q, k, v, *lists, block_size, sm_scale, workspace_bytes = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, out, lse, *lists)
    ctx.options = (block_size, sm_scale, workspace_bytes)  # type: ignore[attr-defined]


def _differentiate(ctx, d_out, _d_lse):  # type: ignore[no-untyped-def]
    q, k, v, out, lse, *lists = ctx.saved_tensors
    gradients = torch.ops.nsa_kernels.block_major_backward(
        q, k, v, out, lse, d_out, *lists, *ctx.options
    )
    return (*gradients, *[None] * 8)


_block_major.register_autograd(_differentiate, setup_context=_keep)
