"""Argument checks of ``block_selection_attention`` and ``plan_blocks``."""

from __future__ import annotations

import torch

from ...launch.checks import DTYPES, check_int32, check_qkv, require
from .plan import BlockPlan, plan_sizes

OP = "block_selection_attention"
BLOCK_SIZES = (16, 32, 64, 128)


def check_blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    index: torch.Tensor,
    block_size: int,
    cu: torch.Tensor | None,
) -> None:
    op = OP
    check_qkv(op, q, k, v, (*DTYPES, torch.float64))
    if not (
        q.dim() == k.dim() == v.dim() == index.dim() == 4
        and k.shape[:3] == v.shape[:3] == index.shape[:3]
        and q.shape[:2] == k.shape[:2]
        and k.shape[2] >= 1
        and q.shape[2] % k.shape[2] == 0
        and min(q.shape[2], index.shape[3]) >= 1
    ):
        raise ValueError(
            f"{op}: expected q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv], block_indices [B,T,H,S] with "
            f"HQ a multiple of H, and S >= 1; got {tuple(q.shape)}, {tuple(k.shape)}, "
            f"{tuple(v.shape)}, {tuple(index.shape)}"
        )
    if index.dtype != torch.int32:
        raise TypeError(
            f"{op}: block_indices must be int32, got {index.dtype}; use .to(torch.int32)"
        )
    require(index.device == q.device, f"{op}: block_indices is on {index.device}, q on {q.device}")
    require(
        type(block_size) is int and block_size in BLOCK_SIZES,
        f"{op}: block_size must be one of {BLOCK_SIZES}; got {block_size}",
    )
    tokens = q.shape[0] * q.shape[1]
    require(tokens < 1 << 30, f"{op}: {tokens} tokens are more than int32 positions can count")
    for name, x in (("q", q), ("k", k), ("v", v), ("block_indices", index)):
        require(
            min(x.shape[:2]) <= 1 or x.stride(0) == x.shape[1] * x.stride(1),
            f"{op}: batch entries of {name} must be adjacent in memory; use .contiguous()",
        )
    if cu is not None:
        check_int32(op, "cu_seqlens", cu)
        require(
            q.shape[0] == 1 and cu.dim() == 1 and cu.numel() >= 2 and cu.is_contiguous(),
            f"{op}: cu_seqlens packs sequences along T: B must be 1 and cu_seqlens contiguous "
            f"[sequences + 1]; got B={q.shape[0]}, {tuple(cu.shape)}",
        )
        require(cu.device == q.device, f"{op}: cu_seqlens is on {cu.device}, q on {q.device}")


def check_plan(
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
        f"{tuple(plan.places.shape)} on {plan.places.device}) does not fit block_indices "
        f"{tuple(index.shape)} on {index.device}, these cu_seqlens and block_size {block_size}; "
        "make it by plan_blocks of the same arguments",
    )
