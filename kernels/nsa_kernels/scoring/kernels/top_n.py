"""The kernel of ``select_blocks``."""

from __future__ import annotations

from ...jit.compat import start_next_launch, tl, triton, wait_for_last_launch


@triton.jit
def select_blocks_kernel(
    scores_ptr,
    ranges_ptr,
    T,
    H,
    n_blocks,
    first_position,
    window,
    COUNT: tl.constexpr,
    SIZE: tl.constexpr,
    LOCAL: tl.constexpr,
    BLOCK: tl.constexpr,
    WITH_WINDOW: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (query and head of a batch): ranges int32 [B,T,H,COUNT,2] of scores [B,T,H,n_blocks].

    A block that begins behind the query is never taken; what is left over is empty, (0, 0).
    WITH_WINDOW, of one query: ranges [B,2,H,COUNT,2], the second with the last ``window`` keys as
    its only span.
    """
    start_next_launch(PDL)
    row = tl.program_id(0).to(tl.int64)
    position = first_position + (tl.program_id(0) // H) % T
    blocks = tl.arange(0, BLOCK)
    wait_for_last_launch(PDL)
    score = tl.load(scores_ptr + row * n_blocks + blocks, mask=blocks < n_blocks, other=0.0)
    own = position // SIZE
    # What is below zero, -0.0 and a NaN have bits above those of a forced block.
    score = tl.where(score > 0, score, 0.0)
    forced = (blocks == 0) | (blocks > own - LOCAL)
    # One key to compare by: scores are not negative, so that their bits are in their order, those
    # of a forced block above all, and of equal ones the lowest index is the greatest.
    bits = tl.where(forced, 0x7FFFFFFF, score.to(tl.int32, bitcast=True))
    key = bits.to(tl.int64) << 32
    key = tl.where(blocks <= own, key + (BLOCK - blocks), -1)
    if WITH_WINDOW:
        row = row // H * (2 * H) + row % H
        for i in range(COUNT):
            near = tl.where(i == 0, tl.maximum(position + 1 - window, 0), 0)
            tl.store(ranges_ptr + ((row + H) * COUNT + i) * 2, near.to(tl.int32))
            end = tl.where(i == 0, position + 1, 0)
            tl.store(ranges_ptr + ((row + H) * COUNT + i) * 2 + 1, end.to(tl.int32))
    for i in range(COUNT):
        best = tl.max(key, 0)
        chosen = BLOCK - (best & 0xFFFFFFFF).to(tl.int32)
        some = best >= 0
        start = tl.where(some, chosen * SIZE, 0)
        end = tl.where(some, tl.minimum(chosen * SIZE + SIZE, position + 1), 0)
        tl.store(ranges_ptr + (row * COUNT + i) * 2, start)
        tl.store(ranges_ptr + (row * COUNT + i) * 2 + 1, end)
        key = tl.where(key == best, -1, key)
