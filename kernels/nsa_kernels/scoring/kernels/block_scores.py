"""Scores of selection blocks from compressed attention (arXiv 2502.11089, equations 8 to 10).

A compressed key covers ``REACH`` strides of tokens and a selection block ``SPAN``; a block gets
from each compressed key its attention weight times the number of their common strides, summed over
the heads of the group. The weights are made again from the logits and the LSE: a logit costs less
than moving it through memory. Key ``SPAN * j + OFFSET`` of all blocks j of a tile at once makes
each sum a plain accumulation, without shuffles inside a tile.
"""

from __future__ import annotations

from ...band.kernels.geometry import band_of
from ...jit.compat import dot, tl, triton
from ...jit.tiles import base_2, load_tile


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
        lse = base_2(tl.load(lse_ptrs + i * T, mask=inside, other=0.0))
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
