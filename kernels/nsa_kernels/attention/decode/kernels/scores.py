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
def decode_scores_of_logits_kernel(
    logits_ptr,
    lse_ptr,
    plse_ptr,
    scores_ptr,
    table_ptr,
    lengths_ptr,
    N,
    padded,
    GROUP,
    n_blocks,
    n_shares,
    H,
    BLOCK_G: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_S: tl.constexpr,
    REACH: tl.constexpr,
    SPAN: tl.constexpr,
    LENGTHS: tl.constexpr,
    STRIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute what ``decode_scores_kernel`` does, but from logits fp32 [rows, GROUP, padded].

    The SPAN keys that begin in a block are adjacent, and are loaded at once. The REACH - 1 keys
    before them also reach into the block. If ``lse_ptr`` holds all LSEs, BLOCK_S is 0. Otherwise it
    is at least the number of shares (parts of a row's keys) whose LSEs are merged. If LENGTHS, each
    entry has H rows and its own number of tokens, and only keys that end within these count. Then
    ``table`` has each row's number of shares, and ``lse_ptr`` the LSE of rows with fewer than two.
    """
    start_next_launch(PDL)
    row = tl.program_id(0).to(tl.int64)
    blocks = tl.program_id(1) * BLOCK_J + tl.arange(0, BLOCK_J)
    heads = tl.arange(0, BLOCK_G)
    ours = heads < GROUP
    wait_for_last_launch(PDL)
    held = n_shares
    if LENGTHS:
        N = complete_keys(tl.load(lengths_ptr + row // H), N, REACH * STRIDE, STRIDE)
        if BLOCK_S > 0:
            held = tl.minimum(tl.load(table_ptr + row * 2 + 1), n_shares)
    if BLOCK_S > 0:
        share = tl.arange(0, BLOCK_S)
        live = (share[:, None] < held) & ours[None, :]
        offset = (row * n_shares + share[:, None]) * GROUP + heads[None, :]
        shares = tl.load(plse_ptr + offset, mask=live, other=float("-inf"))
        top = tl.max(shares, 0)
        top = tl.where(ours, top, 0.0)
        sums = tl.sum(tl.exp2(shares - top[None, :]), 0)
        lse_log2 = tl.where(ours, top + tl.log2(tl.where(ours, sums, 1.0)), float("inf"))
        if LENGTHS:
            whole = tl.load(lse_ptr + row * GROUP + heads, mask=ours, other=float("inf"))
            lse_log2 = tl.where(held > 1, lse_log2, base_2(whole))
    else:
        lse = tl.load(lse_ptr + row * GROUP + heads, mask=ours, other=float("inf"))
        lse_log2 = base_2(lse)
    place = tl.arange(0, BLOCK_P)
    keys = blocks[:, None] * SPAN + place[None, :]
    # Mask by ``padded`` and not by N: then the mask does not change within a vector that is loaded.
    there = (keys < padded) & (place < SPAN)[None, :]
    lines = logits_ptr + (row * GROUP + heads) * padded
    s = tl.load(
        lines[:, None, None] + keys[None, :, :],
        mask=ours[:, None, None] & there[None, :, :],
        other=0.0,
    )
    p = tl.where((keys < N) & there, tl.exp2(s - lse_log2[:, None, None]), 0.0)
    # Count the strides that the key, which covers REACH strides, shares with the block.
    shared = tl.minimum(SPAN - place, REACH)
    acc = tl.sum(tl.sum(p, 0) * shared[None, :], 1)
    for BEFORE in tl.static_range(1, REACH):
        key = blocks * SPAN - BEFORE
        valid = (key >= 0) & (key < N)
        s = tl.load(
            lines[:, None] + key[None, :], mask=ours[:, None] & valid[None, :], other=float("-inf")
        )
        p = tl.where(valid[None, :], tl.exp2(s - lse_log2[:, None]), 0.0)
        acc += tl.sum(p, 0) * (REACH - BEFORE if REACH - BEFORE < SPAN else SPAN)
    tl.store(scores_ptr + row * n_blocks + blocks, acc, mask=blocks < n_blocks)
