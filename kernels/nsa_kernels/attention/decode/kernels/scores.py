"""Kernels for the block scores of one token."""

from __future__ import annotations

from ....jit.compat import dot, start_next_launch, tl, triton, wait_for_last_launch
from ....jit.sequences import complete_keys
from ....jit.tiles import base_2, load_tile


@triton.jit
def decode_scores_kernel(
    q_ptr,
    k_ptr,
    lse_ptr,
    scores_ptr,
    lengths_ptr,
    q_sb,
    q_sh,
    k_sb,
    k_sh,
    k_sn,
    N,
    H,
    GROUP,
    n_blocks,
    scale_log2,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_J: tl.constexpr,
    REACH: tl.constexpr,
    SPAN: tl.constexpr,
    LENGTHS: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """Program (batch and key head, block tile): store scores [B,H,n_blocks], as ``block_scores``.

    If LENGTHS, only the compressed keys that end within an entry's tokens count.
    """
    row = tl.program_id(0)
    batch = (row // H).to(tl.int64)
    if LENGTHS:
        N = complete_keys(tl.load(lengths_ptr + batch), N, REACH * STRIDE, STRIDE)
    kv_head = (row % H).to(tl.int64)
    blocks = tl.program_id(1) * BLOCK_J + tl.arange(0, BLOCK_J)
    heads = tl.arange(0, BLOCK_G)
    ours = heads < GROUP
    q_base = q_ptr + batch * q_sb + kv_head * GROUP * q_sh
    q = load_tile(q_base, heads, q_sh, ours, D, BLOCK_D, True)
    lse = tl.load(lse_ptr + row.to(tl.int64) * GROUP + heads, mask=ours, other=float("inf"))
    k_base = k_ptr + batch * k_sb + kv_head * k_sh
    acc = tl.zeros([BLOCK_J], dtype=tl.float32)
    for PLACE in tl.static_range(SPAN + REACH - 1):
        keys = blocks * SPAN + (PLACE - REACH + 1)
        valid = (keys >= 0) & (keys < N)
        k = load_tile(k_base, keys.to(tl.int64), k_sn, valid, D, BLOCK_D, True)
        s = tl.zeros([BLOCK_G, BLOCK_J], dtype=tl.float32)
        s = dot(q, tl.trans(k), s)
        p = tl.exp2(s * scale_log2 - base_2(lse)[:, None])
        # Count the strides that the key, which covers REACH strides, shares with the block.
        first = tl.maximum(tl.zeros_like(keys) + (PLACE - REACH + 1), 0)
        shared = tl.minimum(tl.zeros_like(keys) + (PLACE + 1), SPAN) - first
        acc += tl.where(valid, tl.sum(p, 0), 0.0) * shared
    tl.store(scores_ptr + row.to(tl.int64) * n_blocks + blocks, acc, mask=blocks < n_blocks)


@triton.jit
def scores_of_sums(
    sums_ptr,
    plse_ptr,
    row,
    block,
    N,
    GROUP,
    n_blocks,
    n_shares,
    SPAN: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Return the scores of blocks of a row, from what ``decode_compressed_kernel`` stores: ``sums``
    fp32 [rows, n_blocks, SUMS, GROUP] and ``plse`` fp32 [rows, n_shares, GROUP]. Only the first N
    keys count."""
    # A line of sums of a block: head by head, for each block where the keys of one block count.
    column = tl.arange(0, BLOCK_C)
    ours = column < SUMS * GROUP
    share = tl.arange(0, BLOCK_S)
    plse = tl.load(
        plse_ptr + (row * n_shares + share[:, None]) * GROUP + (column % GROUP)[None, :],
        mask=(share[:, None] < n_shares) & ours[None, :],
        other=float("-inf"),
    )
    sums = tl.load(
        sums_ptr + (row * n_blocks + block[:, None]) * (SUMS * GROUP) + column[None, :],
        mask=(block < n_blocks)[:, None] & ours[None, :],
        other=float("-inf"),
    )
    top = tl.where(ours, tl.max(plse, 0), 0.0)
    lse_log2 = top + tl.log2(tl.sum(tl.exp2(plse - top[None, :]), 0))
    of = block[:, None] - (column // GROUP)[None, :]
    there = (of >= 0) & (of * SPAN < N) & ours[None, :]
    return tl.sum(tl.where(there, tl.exp2(sums - lse_log2[None, :]), 0.0), 1)


@triton.jit
def decode_scores_of_sums_kernel(
    sums_ptr,
    plse_ptr,
    scores_ptr,
    lengths_ptr,
    N,
    GROUP,
    n_blocks,
    n_shares,
    H,
    BLOCK_C: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_S: tl.constexpr,
    REACH: tl.constexpr,
    SPAN: tl.constexpr,
    SUMS: tl.constexpr,
    LENGTHS: tl.constexpr,
    STRIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (row, block tile): store scores fp32 [rows, n_blocks] from ``sums`` and ``plse``. If
    LENGTHS, each entry has H rows, and only keys that end within its tokens count."""
    start_next_launch(PDL)
    row = tl.program_id(0).to(tl.int64)
    if LENGTHS:
        N = complete_keys(tl.load(lengths_ptr + row // H), N, REACH * STRIDE, STRIDE)
    block = tl.program_id(1) * BLOCK_J + tl.arange(0, BLOCK_J)
    wait_for_last_launch(PDL)
    score = scores_of_sums(
        sums_ptr, plse_ptr, row, block, N, GROUP, n_blocks, n_shares, SPAN, SUMS, BLOCK_C, BLOCK_S
    )
    tl.store(scores_ptr + row * n_blocks + block, score, mask=block < n_blocks)
