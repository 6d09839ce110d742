"""The kernel that chooses blocks by their scores.

A row of scores is cut into groups, and the highest score of each group is kept. Each iteration
takes the highest of these scores, reads the score's group again (from L1), and replaces the score
by the next highest of the group. Blocks are taken by descending score, and at equal scores by
index. So in this order, all blocks up to the last taken one are taken, and no list of them is
needed. One warp does a row of up to 2,048 blocks, and a reduction over 32 lanes is one instruction.
"""

from __future__ import annotations

from ...jit.compat import start_next_launch, tl, triton, wait_for_last_launch
from ...jit.sequences import sequence_of


@triton.jit
def _rank(score, block, end):
    """Return an int32 for each score: the greater the score, the greater the int32.

    A score that is not above 0 gets 0. A block that cannot be taken gets -1: this is block 0, which
    is selected anyway, or a block from ``end``.
    """
    # The bits of negative scores, -0.0 and NaN have another order.
    bits = tl.where(score > 0, score, 0.0).to(tl.int32, bitcast=True)
    return tl.where((block >= 1) & (block < end), bits, -1)


@triton.jit
def _store(out_ptr, slot, block, position, base, real, SIZE: tl.constexpr, SPANS: tl.constexpr):
    """Store a chosen ``block`` to a slot: its number, or if SPANS, the span of its tokens up to
    ``position``, counted from ``base``."""
    if SPANS:
        start = block * SIZE
        tl.store(out_ptr + slot * 2, base + start, mask=real)
        tl.store(out_ptr + slot * 2 + 1, base + tl.minimum(start + SIZE, position + 1), mask=real)
    else:
        tl.store(out_ptr + slot, block, mask=real)


@triton.jit
def _choose(
    row_ptr,
    out_ptr,
    position,
    base,
    COUNT: tl.constexpr,
    SIZE: tl.constexpr,
    LOCAL: tl.constexpr,
    PAD_FORCED: tl.constexpr,
    GROUPS: tl.constexpr,
    MEMBERS: tl.constexpr,
    ALIGNED: tl.constexpr,
    SPANS: tl.constexpr,
):
    """Choose the blocks of a query at ``position`` of its sequence (-1: it is in no sequence)."""
    held = tl.where(position >= 0, position // SIZE + 1, 0)
    forced = tl.minimum(held, LOCAL + 1)
    end = held - LOCAL
    groups = tl.arange(0, GROUPS)
    members = tl.arange(0, MEMBERS)
    blocks = groups[:, None] * MEMBERS + members[None, :]
    # The last LOCAL blocks up to the query, and later ones, are not read. If ALIGNED, the mask is
    # rounded up to 16 blocks, so that a lane reads four at once.
    behind = end
    if ALIGNED:
        behind = (tl.maximum(end, 0) + 15) // 16 * 16
    score = tl.load(row_ptr + blocks, mask=blocks < behind, other=0.0)
    highest = tl.max(_rank(score, blocks, end), 1)
    slot = tl.arange(0, PAD_FORCED)
    local = tl.where(slot == 0, 0, tl.maximum(end - 1, 0) + slot)
    _store(out_ptr, slot, local, position, base, slot < forced, SIZE, SPANS)
    last = 0x7FFFFFFF
    chosen = -1
    for i in range(forced, tl.minimum(held, COUNT)):
        best = tl.max(highest, 0)
        group = tl.min(tl.where(highest == best, groups, GROUPS), 0)
        block = group * MEMBERS + members
        rank = _rank(tl.load(row_ptr + block, mask=block < end, other=0.0), block, end)
        rank = tl.where((rank < last) | ((rank == last) & (block > chosen)), rank, -1)
        chosen = tl.min(tl.where(rank == best, block, 0x7FFFFFFF), 0)
        rest = tl.max(tl.where(block == chosen, -1, rank), 0)
        highest = tl.where(groups == group, rest, highest)
        if GROUPS == MEMBERS:
            # The inner minimum gives ``rank`` the layout of ``highest``, one element for each lane,
            # so each of four reductions is one instruction. No value changes: none is below -1.
            highest = tl.maximum(highest, tl.minimum(rank, -1))
        last = best
        _store(out_ptr, i, chosen, position, base, True, SIZE, SPANS)
    for i in range(tl.minimum(held, COUNT), COUNT):
        if SPANS:
            tl.store(out_ptr + i * 2, 0)
            tl.store(out_ptr + i * 2 + 1, 0)
        else:
            tl.store(out_ptr + i, -1)


@triton.jit
def slots_of(score, block, held, LOCAL: tl.constexpr):
    """Return the place of each block in the order in which ``_choose`` takes them, from the scores
    of all blocks of a row. It counts for each block how many others come before it."""
    forced = tl.minimum(held, LOCAL + 1)
    end = held - LOCAL
    rank = _rank(score, block, end)
    equal = rank[None, :] == rank[:, None]
    before = (rank[None, :] > rank[:, None]) | (equal & (block[None, :] < block[:, None]))
    slot = tl.where(block == 0, 0, forced + tl.sum(before.to(tl.int32), 1))
    slot = tl.where(block >= tl.maximum(end, 1), block - tl.maximum(end - 1, 0), slot)
    return tl.where(block < held, slot, -1)


@triton.jit
def select_blocks_kernel(
    scores_ptr,
    out_ptr,
    cu_ptr,
    cu_tokens_ptr,
    positions_ptr,
    rows,
    T,
    H,
    n_blocks,
    sequences,
    first_position,
    last_position,
    COUNT: tl.constexpr,
    SIZE: tl.constexpr,
    LOCAL: tl.constexpr,
    PAD_FORCED: tl.constexpr,
    GROUPS: tl.constexpr,
    MEMBERS: tl.constexpr,
    ROWS: tl.constexpr,
    ALIGNED: tl.constexpr,
    PACKED: tl.constexpr,
    STEPS: tl.constexpr,
    BEHIND: tl.constexpr,
    POSITIONS: tl.constexpr,
    SPANS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (ROWS pairs of query and key head): choose blocks by scores [B,T,H,n_blocks].

    The result is int32: block numbers [B,T,H,COUNT], or with SPANS their tokens [B,T,H,COUNT,2]. A
    block that begins after the query is never taken. Slots without a block are -1, or (0, 0).

    If PACKED, positions are counted from the beginning of the query's sequence.
    If BEHIND, the queries of a sequence are the last of its tokens, and spans are counted from the
    first token of the first sequence.
    If POSITIONS, each batch entry adds a number to its positions, and positions after
    ``last_position`` count as ``last_position``. A query at a position below 0 selects nothing.
    """
    start_next_launch(PDL)
    wait_for_last_launch(PDL)
    for i in range(ROWS):
        row = tl.program_id(0).to(tl.int64) * ROWS + i
        if row < rows:
            t = ((row // H) % T).to(tl.int32)
            position = first_position + t
            base = 0
            if PACKED:
                sequence = sequence_of(cu_ptr, t, sequences, STEPS)
                begin = tl.load(cu_ptr + sequence)
                inside = (begin >= 0) & (begin <= t) & (t < tl.load(cu_ptr + sequence + 1))
                place = t - begin
                if BEHIND:
                    base = tl.load(cu_tokens_ptr + sequence)
                    queries = tl.load(cu_ptr + sequence + 1) - begin
                    place += tl.load(cu_tokens_ptr + sequence + 1) - base - queries
                    # If cu_seqlens is malformed, stay within the scores of the row.
                    place = tl.minimum(place, last_position)
                position = tl.where(inside, place, -1)
            if POSITIONS:
                own = tl.load(positions_ptr + row // H // T)
                own = tl.minimum(tl.maximum(own, -(1 << 30)), last_position + 1)
                position = tl.minimum(own + position, last_position)
            _choose(
                scores_ptr + row * n_blocks,
                out_ptr + row * (COUNT * (2 if SPANS else 1)),
                position,
                base,
                COUNT,
                SIZE,
                LOCAL,
                PAD_FORCED,
                GROUPS,
                MEMBERS,
                ALIGNED,
                SPANS,
            )
