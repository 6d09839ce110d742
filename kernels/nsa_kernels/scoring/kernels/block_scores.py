"""Scores of selection blocks from compressed attention (arXiv 2502.11089, equations 8 to 10).

A compressed key covers ``REACH`` strides of tokens, and a selection block covers ``SPAN``. A block
gets the attention weight of each compressed key times the number of strides that both cover, summed
over the heads of the group. The weights are computed again from the LSE, since computing a logit is
faster than storing and loading it. They are first summed over the heads, in registers. Then, once
for each tile of keys, the sums are multiplied by a matrix with the numbers of shared strides.
"""

from __future__ import annotations

from ...jit.compat import dot, narrow, tl, triton
from ...jit.sequences import sequence_of
from ...jit.tiles import base_2, load_tile


@triton.jit
def _shared_strides(
    first,
    KEYS: tl.constexpr,
    PAD_BLOCKS: tl.constexpr,
    REACH: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Return bfloat16 [KEYS, PAD_BLOCKS]: how many strides key ``first + i``, counted from the
    first block of a tile, shares with block j. Numbers up to 256 are exact in bfloat16."""
    begin = first + tl.arange(0, KEYS)[:, None] - tl.arange(0, PAD_BLOCKS)[None, :] * SPAN
    shared = tl.minimum(begin + REACH, SPAN) - tl.maximum(begin, 0)
    return tl.maximum(shared, 0).to(tl.float32).to(tl.bfloat16)


@triton.jit
def _sum_of_keys(acc, shared, scores):
    """Return ``scores + acc @ shared``, exact to float32: ``acc`` is split into three bfloat16s."""
    for _ in tl.static_range(3):
        part = narrow(acc, tl.bfloat16)
        scores = dot(part, shared, scores)
        acc -= part.to(tl.float32)
    return scores


@triton.jit
def block_scores_kernel(
    q_ptr,
    k_ptr,
    lse_ptr,
    cu_ptr,
    cu_keys_ptr,
    cu_tokens_ptr,
    scores_ptr,
    q_sb,
    q_st,
    q_sh,
    k_sb,
    k_sn,
    k_sh,
    T,
    N,
    HQ,
    GROUP,
    n_blocks,
    sequences,
    first_position,
    scale_log2,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    KEYS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCKS: tl.constexpr,
    PAD_BLOCKS: tl.constexpr,
    REACH: tl.constexpr,
    SPAN: tl.constexpr,
    STRIDE: tl.constexpr,
    PACKED: tl.constexpr,
    STEPS: tl.constexpr,
    BEHIND: tl.constexpr,
    VISIBLE: tl.constexpr,
):
    """Program (query tile, BLOCKS blocks, batch and key head): write scores [B,T,H,n_blocks].

    A program takes its keys in CHUNKS tiles of KEYS keys. If PACKED, blocks and keys are counted
    from the beginning of a query's sequence. If BEHIND, the queries are the last tokens of their
    sequences. Before them come ``first_position`` tokens, or in packed sequences all other tokens
    of the sequence. If VISIBLE, a program whose blocks all begin after its queries writes nothing.
    """
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    H = HQ // GROUP
    batch = (tl.program_id(2) // H).to(tl.int64)
    kv_head = tl.program_id(2) % H
    row = tl.arange(0, BLOCK_M)
    t = first + row
    inside = t < T
    last = tl.minimum(first + BLOCK_M, T) - 1
    block = tl.program_id(1) * BLOCKS
    q_ptr += batch * q_sb + first.to(tl.int64) * q_st + (kv_head * GROUP).to(tl.int64) * q_sh
    k_ptr += batch * k_sb + kv_head.to(tl.int64) * k_sh
    lse_ptr += (batch * HQ + kv_head * GROUP) * T + first
    s0 = 0
    s1 = 0
    if PACKED:
        s0 = sequence_of(cu_ptr, first, sequences, STEPS)
        s1 = sequence_of(cu_ptr, last, sequences, STEPS)
    scores = tl.zeros([BLOCK_M, PAD_BLOCKS], dtype=tl.float32)
    farthest = -1  # the largest position, in its sequence, of a query of the tile
    for chunk in range(CHUNKS):
        from_block = chunk * KEYS - (REACH - 1)
        keys = block * SPAN + from_block + tl.arange(0, KEYS)
        acc = tl.zeros([BLOCK_M, KEYS], dtype=tl.float32)
        for s in range(s0, s1 + 1):
            begin = 0
            end = T
            n = N
            key0 = 0
            if PACKED:
                begin = tl.load(cu_ptr + s)
                end = tl.load(cu_ptr + s + 1)
                key0 = tl.minimum(tl.maximum(tl.load(cu_keys_ptr + s), 0), N)
                n = tl.minimum(tl.load(cu_keys_ptr + s + 1), N) - key0
            place = t - begin
            last_place = tl.minimum(last, end - 1) - begin
            if BEHIND:
                before = first_position
                if PACKED:
                    tokens = tl.load(cu_tokens_ptr + s + 1) - tl.load(cu_tokens_ptr + s)
                    before = tokens - (end - begin)
                place += before
                last_place += before
            position = tl.where((t >= begin) & (t < end) & inside, place, -1)
            farthest = tl.maximum(farthest, last_place)
            seen = tl.minimum(tl.maximum(position + 1 - REACH * STRIDE + STRIDE, 0) // STRIDE, n)
            most = tl.max(seen, 0)
            least = tl.min(tl.where(inside, seen, most), 0)
            low = block * SPAN + from_block
            if low < most:
                valid = (keys >= 0) & (keys < most)
                at = (key0 + keys).to(tl.int64)
                k = load_tile(k_ptr, at, k_sn, valid, D, BLOCK_D, True)
                # Keys before the first of a sequence become N, which no query sees.
                seen_keys = tl.where(keys >= 0, keys, N)
                edge = (low < 0) | (low + KEYS > least)
                for i in range(GROUP):
                    head = q_ptr + tl.cast(i, tl.int64) * q_sh
                    q = load_tile(head, row, q_st, inside, D, BLOCK_D, True)
                    lses = lse_ptr + tl.cast(i, tl.int64) * T + row
                    lse = base_2(tl.load(lses, mask=inside, other=0.0))
                    logits = tl.zeros([BLOCK_M, KEYS], dtype=tl.float32)
                    logits = dot(q, tl.trans(k), logits)
                    p = tl.exp2(logits * scale_log2 - lse[:, None])
                    if edge:
                        p = tl.where(seen_keys[None, :] < seen[:, None], p, 0.0)
                    acc += p
        shared = _shared_strides(from_block, KEYS, PAD_BLOCKS, REACH, SPAN)
        scores = _sum_of_keys(acc, shared, scores)
    j = tl.arange(0, PAD_BLOCKS)
    mask = inside[:, None] & (j[None, :] < BLOCKS) & (block + j[None, :] < n_blocks)
    if VISIBLE:
        mask = mask & (block * (SPAN * STRIDE) <= farthest)
    to = ((batch * T + first) * H + kv_head) * n_blocks + block
    tl.store(scores_ptr + to + row[:, None] * (H * n_blocks) + j[None, :], scores, mask=mask)
