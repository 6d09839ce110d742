"""Scores of selection blocks from compressed attention (arXiv 2502.11089, equations 8 to 10).

A compressed key covers ``REACH`` strides of tokens and a selection block ``SPAN``; a block gets
from each compressed key its attention weight times the number of their common strides, summed over
the heads of the group. The weights are made again from the logits and the LSE: a logit costs less
than moving it through memory. Key ``SPAN * j + OFFSET`` of all blocks j of a tile at once makes
each sum a plain accumulation, without shuffles inside a tile.
"""

from __future__ import annotations

import torch

from ..band.forward import band_of
from ..band.launch import Band, Tiles
from ..jit.compat import dot, tl, triton
from ..jit.tiles import load_tile
from ..launch import checks as check


@triton.jit
def add_place(
    acc,
    q_base,
    k_base,
    lse_ptrs,
    blocks,
    inside,
    lo,
    hi,
    end,
    first_head,
    group,
    q_st,
    q_sh,
    q_sd,
    k_sn,
    k_sd,
    T,
    scale_log2,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    REACH: tl.constexpr,
    SPAN: tl.constexpr,
    OFFSET: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """``acc`` and the weights of key ``SPAN * j + OFFSET`` of each block j, of ``group`` heads."""
    # Strides that the key, from OFFSET to OFFSET + REACH, shares with the block, from 0 to SPAN.
    END: tl.constexpr = OFFSET + REACH if OFFSET + REACH < SPAN else SPAN
    SHARED: tl.constexpr = END - OFFSET if OFFSET > 0 else END
    of_tile = tl.arange(0, acc.shape[0])
    d = tl.arange(0, BLOCK_D)
    keys = blocks * SPAN + OFFSET
    valid = (keys >= 0) & (keys < end)
    k = load_tile(k_base, keys.to(tl.int64), d, k_sn, k_sd, valid, D, BLOCK_D, True)
    seen = (keys[None, :] >= lo[:, None]) & (keys[None, :] < hi[:, None])
    for i in range(group):
        q_head = q_base + (first_head + i).to(tl.int64) * q_sh
        q = load_tile(q_head, of_tile, d, q_st, q_sd, inside, D, BLOCK_D, True)
        lse = tl.load(lse_ptrs + i * T, mask=inside, other=0.0) * 1.4426950408889634
        s = tl.zeros([acc.shape[0], acc.shape[1]], dtype=tl.float32)
        s = dot(q, tl.trans(k), s, PRECISION)
        p = tl.where(seen, tl.exp2(s * scale_log2 - lse[:, None]), 0.0)
        acc += p * SHARED
    return acc


@triton.jit
def block_scores_kernel(
    q_ptr,
    k_ptr,
    lse_ptr,
    scores_ptr,
    q_sb,
    q_st,
    q_sh,
    q_sd,
    k_sb,
    k_sn,
    k_sh,
    k_sd,
    T,
    N,
    HQ,
    GROUP,
    n_blocks,
    scale_log2,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK: tl.constexpr,
    STRIDE: tl.constexpr,
    SPAN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (query tile, block tile, batch and key head): scores [B,T,H,n_blocks]."""
    REACH: tl.constexpr = BLOCK // STRIDE
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    H = HQ // GROUP
    batch = (tl.program_id(2) // H).to(tl.int64)
    kv_head = tl.program_id(2) % H
    of_tile = tl.arange(0, BLOCK_M)
    of_blocks = tl.arange(0, BLOCK_J)
    t = first + of_tile
    inside = t < T
    blocks = tl.program_id(1) * BLOCK_J + of_blocks
    lo, hi = band_of(t, inside, lse_ptr, lse_ptr, N, 0, BLOCK, STRIDE, False, False)
    last = tl.minimum(first + BLOCK_M, T) - 1
    _, hi1 = band_of(last, True, lse_ptr, lse_ptr, N, 0, BLOCK, STRIDE, False, False)
    k_base = k_ptr + batch * k_sb + kv_head.to(tl.int64) * k_sh
    q_base = q_ptr + batch * q_sb + first.to(tl.int64) * q_st
    acc = tl.zeros([BLOCK_M, BLOCK_J], dtype=tl.float32)
    # No query of the tile sees a key of these blocks: nothing to add up.
    group = tl.where(tl.program_id(1) * (BLOCK_J * SPAN) - REACH + 1 < hi1, GROUP, 0)
    for PLACE in tl.static_range(SPAN + REACH - 1):
        acc = add_place(
            acc,
            q_base,
            k_base,
            lse_ptr + (batch * HQ + kv_head * GROUP) * T + t,
            blocks,
            inside,
            lo,
            hi,
            hi1,
            kv_head * GROUP,
            group,
            q_st,
            q_sh,
            q_sd,
            k_sn,
            k_sd,
            T,
            scale_log2,
            D,
            BLOCK_D,
            REACH,
            SPAN,
            PLACE - REACH + 1,
            PRECISION,
        )
    row = ((batch * T + first) * H + kv_head) * n_blocks
    tl.store(
        scores_ptr + row + of_tile[:, None] * (H * n_blocks) + blocks[None, :],
        acc,
        mask=inside[:, None] & (blocks[None, :] < n_blocks),
    )


@check.on_its_device
def block_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    lse: torch.Tensor,
    band: Band,
    block_size: int,
    sm_scale: float,
    tiles: Tiles | None = None,
) -> torch.Tensor:
    """float32 [B, T, H, ceil(T / block_size)], 0 where a query sees no key of a block.

    Args:
        q: [B, T, HQ, D]. k: compressed keys [B, N, H, D].
        lse: [B, HQ, T] float32, of the compressed attention, natural.
        band: dense and without a window; its stride divides ``block_size`` and its block.
    """
    b, t, hq, d = q.shape
    n, h = k.shape[1:3]
    n_blocks = check.cdiv(t, block_size)
    scores = torch.empty((b, t, h, n_blocks), dtype=torch.float32, device=q.device)
    if scores.numel() == 0:
        return scores
    # Of 64 queries, which are staged, and up to 128 blocks: those of the first half of a sequence
    # see too few blocks to fill more.
    wide = min(128, max(16, check.next_power_of_2(n_blocks)))
    small = d > 128 or q.element_size() == 4
    tiles = tiles or (Tiles(32, 16, 4, 1) if small else Tiles(64, wide, 4, 3))
    grid = (check.cdiv(t, tiles.block_m), check.cdiv(n_blocks, tiles.block_n), b * h)
    block_scores_kernel[grid](
        q,
        k,
        lse,
        scores,
        *q.stride(),
        *k.stride(),
        t,
        n,
        hq,
        hq // h,
        n_blocks,
        sm_scale * check.LOG2_E,
        D=d,
        BLOCK_D=check.next_power_of_2(d),
        BLOCK_M=tiles.block_m,
        BLOCK_J=tiles.block_n,
        BLOCK=band.block,
        STRIDE=band.stride,
        SPAN=block_size // band.stride,
        PRECISION="ieee",
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return scores
