"""The forward kernel of attention under a band (`geometry.py`) for Hopper, in Gluon.

A piece of work is 128 queries of a head. One warp copies the queries of a piece by TMA into shared
memory, then the keys and values, tile by tile. Two warp groups attend for 64 queries each. On the
tensor cores, a warp group starts the logits of a tile and the output of the tile before. While the
output is computed, the group computes the softmax of the logits. Each slot (room for a tile) has
two barriers: ``ready`` says that the slot is filled, ``empty`` that it may be filled again. Tiles
use the slots in turn. Logits are in the log2 domain. Tile i begins at key i * BLOCK_N.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

ROWS = gl.constexpr(64)  # queries of a warp group, as many as a wgmma instruction takes
GROUPS = gl.constexpr(2)
Q_SLOTS = gl.constexpr(2)  # slots of a warp group, so that the next queries are copied early
BYTES = gl.constexpr(2)  # bytes of an element, float16 or bfloat16
COPYING_REGISTERS = gl.constexpr(24)


@gluon.jit
def end_of(t, N, BLOCK: gl.constexpr, STRIDE: gl.constexpr):
    """Return the (exclusive) end of the keys that query ``t`` sees."""
    return gl.minimum(gl.maximum(t + (1 - BLOCK + STRIDE), 0) // STRIDE, N)


@gluon.jit
def begin_of(end, window, WINDOWED: gl.constexpr):
    """Return the first key of a query whose keys end at ``end``."""
    if WINDOWED:
        begin = gl.maximum(end - window, 0)
    else:
        begin = end * 0
    return begin


@gluon.jit
def piece_of(work, T, HQ):
    """Return the first query and the head of a piece of work.

    The last queries come first, because they have the most keys. Consecutive pieces take
    consecutive heads, so that heads that share keys run at the same time.
    """
    tiles = (T + ROWS * GROUPS - 1) // (ROWS * GROUPS)
    return (tiles - 1 - work // HQ) * (ROWS * GROUPS), work % HQ


@gluon.jit
def tiles_of(
    first,
    rows,
    T,
    N,
    window,
    BLOCK_N: gl.constexpr,
    BLOCK: gl.constexpr,
    STRIDE: gl.constexpr,
    WINDOWED: gl.constexpr,
):
    """Return tile numbers begin <= whole <= partial <= end, for ``rows`` queries from ``first``.

    Some of these queries see keys of the tiles begin to end - 1. All of these queries see all keys
    of the tiles whole to partial - 1.
    """
    last = gl.maximum(gl.minimum(first + rows, T) - 1, 0)
    end0 = end_of(first, N, BLOCK, STRIDE)
    end1 = end_of(last, N, BLOCK, STRIDE)
    begin = begin_of(end0, window, WINDOWED) // BLOCK_N
    end = gl.maximum((end1 + BLOCK_N - 1) // BLOCK_N, begin)
    whole = gl.minimum((begin_of(end1, window, WINDOWED) + BLOCK_N - 1) // BLOCK_N, end)
    partial = gl.minimum(gl.maximum(end0 // BLOCK_N, whole), end)
    return begin, whole, partial, end


@gluon.jit
def copy(
    q_box,
    k_box,
    v_box,
    q_room,
    k_room,
    v_room,
    q_ready,
    q_empty,
    k_ready,
    k_empty,
    v_ready,
    v_empty,
    T,
    N,
    HQ,
    GROUP,
    window,
    works,
    D: gl.constexpr,
    BLOCK_N: gl.constexpr,
    SLOTS: gl.constexpr,
    BLOCK: gl.constexpr,
    STRIDE: gl.constexpr,
    WINDOWED: gl.constexpr,
):
    count = 0  # how many tiles of keys have been copied
    turn = 0  # how many pieces of work are done
    for work in range(gl.program_id(0), works, gl.num_programs(0)):
        first, head = piece_of(work, T, HQ)
        begin, _whole, _partial, end = tiles_of(
            first, ROWS * GROUPS, T, N, window, BLOCK_N, BLOCK, STRIDE, WINDOWED
        )
        for group in gl.static_range(GROUPS):
            slot = turn % Q_SLOTS * GROUPS + group
            mbarrier.wait(q_empty.index(slot), (turn // Q_SLOTS & 1) ^ 1)
            mbarrier.expect(q_ready.index(slot), ROWS * D * BYTES)
            at = [first + ROWS * group, head * D]
            tma.async_copy_global_to_shared(q_box, at, q_ready.index(slot), q_room.index(slot))
        column = head // GROUP * D
        for tile in range(begin, end):
            slot = count % SLOTS
            parity = (count // SLOTS & 1) ^ 1
            at = [tile * BLOCK_N, column]
            mbarrier.wait(k_empty.index(slot), parity)
            mbarrier.expect(k_ready.index(slot), BLOCK_N * D * BYTES)
            tma.async_copy_global_to_shared(k_box, at, k_ready.index(slot), k_room.index(slot))
            mbarrier.wait(v_empty.index(slot), parity)
            mbarrier.expect(v_ready.index(slot), BLOCK_N * D * BYTES)
            tma.async_copy_global_to_shared(v_box, at, v_ready.index(slot), v_room.index(slot))
            count += 1
        turn += 1


@gluon.jit
def softmax(
    s,
    row_max,
    start,
    lo,
    hi,
    scale_log2,
    BLOCK_N: gl.constexpr,
    LAYOUT: gl.constexpr,
    EDGES: gl.constexpr,
):
    """Return weights of logits, the new maximum, the factor for earlier sums, the sum of weights.

    EDGES is 0 if the tile needs no mask, since every query sees every key. It is 1 if the tile
    needs a mask at the end of each query's keys, and 2 if also at the beginning.
    """
    if EDGES:
        keys = gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))
        seen = keys[None, :] < (hi - start)[:, None]
        if EDGES == 2:
            seen = seen & (keys[None, :] >= (lo - start)[:, None])
        s = gl.where(seen, s, float("-inf"))
    new_max = gl.maximum(row_max, gl.max(s, 1) * scale_log2)
    finite = new_max
    if EDGES:
        finite = gl.where(new_max == float("-inf"), 0.0, new_max)
    p = gl.exp2(s * scale_log2 - finite[:, None])
    return p, new_max, gl.exp2(row_max - finite), gl.sum(p, 1)


@gluon.jit
def logits(
    q, k_room, k_ready, count, BLOCK_N: gl.constexpr, SLOTS: gl.constexpr, LAYOUT: gl.constexpr
):
    """Start the logits of tile number ``count``, in slot ``count % SLOTS``."""
    mbarrier.wait(k_ready.index(count % SLOTS), count // SLOTS & 1)
    zero = gl.full([ROWS, BLOCK_N], 0.0, gl.float32, LAYOUT)
    k = k_room.index(count % SLOTS).permute((1, 0))
    return warpgroup_mma(q, k, zero, use_acc=False, is_async=True)


@gluon.jit
def step(
    tile,
    count,
    q,
    k_room,
    v_room,
    k_ready,
    k_empty,
    v_ready,
    v_empty,
    p,
    acc,
    row_max,
    row_sum,
    lo,
    hi,
    scale_log2,
    BLOCK_N: gl.constexpr,
    SLOTS: gl.constexpr,
    S_LAYOUT: gl.constexpr,
    O_LAYOUT: gl.constexpr,
    P_LAYOUT: gl.constexpr,
    EDGES: gl.constexpr,
):
    """Compute the softmax of tile number ``count``, and the output of the tile before."""
    before = (count - 1) % SLOTS
    parity = (count - 1) // SLOTS & 1
    s = logits(q, k_room, k_ready, count, BLOCK_N, SLOTS, S_LAYOUT)
    mbarrier.wait(v_ready.index(before), parity)
    acc = warpgroup_mma(p, v_room.index(before), acc, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s])
    mbarrier.arrive(k_empty.index(count % SLOTS), count=1)
    weights, row_max, alpha, some = softmax(
        s, row_max, tile * BLOCK_N, lo, hi, scale_log2, BLOCK_N, S_LAYOUT, EDGES
    )
    row_sum = row_sum * alpha + some
    # This wait returns at once, but it ends a basic block, so ptxas cannot move the softmax below
    # the next wait.
    mbarrier.wait(v_ready.index(before), parity)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(v_empty.index(before), count=1)
    acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, O_LAYOUT))[:, None]
    p = gl.convert_layout(weights.to(q.dtype), P_LAYOUT)
    return p, acc, row_max, row_sum


@gluon.jit
def attend(
    WHO: gl.constexpr,
    out_box,
    lse_ptr,
    q_room,
    k_room,
    v_room,
    q_ready,
    q_empty,
    k_ready,
    k_empty,
    v_ready,
    v_empty,
    T,
    N,
    HQ,
    window,
    works,
    scale_log2,
    D: gl.constexpr,
    BLOCK_N: gl.constexpr,
    SLOTS: gl.constexpr,
    BLOCK: gl.constexpr,
    STRIDE: gl.constexpr,
    WINDOWED: gl.constexpr,
):
    """Do the work of warp group ``WHO``: attend for 64 queries of each piece. Both groups go over
    all tiles of the piece."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    S_ROWS: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    O_ROWS: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    count = 0
    turn = 0
    for work in range(gl.program_id(0), works, gl.num_programs(0)):
        slot = turn % Q_SLOTS * GROUPS + WHO
        q = q_room.index(slot)
        first, head = piece_of(work, T, HQ)
        begin, _whole, _partial, end = tiles_of(
            first, ROWS * GROUPS, T, N, window, BLOCK_N, BLOCK, STRIDE, WINDOWED
        )
        mine = first + ROWS * WHO
        _begin, whole, partial, _end = tiles_of(
            mine, ROWS, T, N, window, BLOCK_N, BLOCK, STRIDE, WINDOWED
        )
        t = mine + gl.arange(0, ROWS, S_ROWS)
        hi = end_of(t, N, BLOCK, STRIDE)
        lo = begin_of(hi, window, WINDOWED)
        row_max = gl.full([ROWS], float("-inf"), gl.float32, S_ROWS)
        row_sum = gl.full([ROWS], 0.0, gl.float32, S_ROWS)
        acc = gl.full([ROWS, D], 0.0, gl.float32, O_LAYOUT)
        mbarrier.wait(q_ready.index(slot), turn // Q_SLOTS & 1)
        if begin < end:
            ahead = count - begin  # ``ahead + tile`` is the tile's ``count``
            s = logits(q, k_room, k_ready, count, BLOCK_N, SLOTS, S_LAYOUT)
            s = warpgroup_mma_wait(0, deps=[s])
            mbarrier.arrive(k_empty.index(count % SLOTS), count=1)
            EDGES: gl.constexpr = 2 if WINDOWED else 1
            weights, row_max, _alpha, row_sum = softmax(
                s, row_max, begin * BLOCK_N, lo, hi, scale_log2, BLOCK_N, S_LAYOUT, EDGES
            )
            p = gl.convert_layout(weights.to(q.dtype), P_LAYOUT)
            # Release the slot of the piece before, once the output in it has been copied out.
            tma.store_wait(0)
            last = (turn + 1) % Q_SLOTS * GROUPS + WHO
            mbarrier.arrive(q_empty.index(last), count=1, pred=turn > 0)
            whole = gl.minimum(gl.maximum(whole, begin + 1), end)
            partial = gl.minimum(gl.maximum(partial, whole), end)
            if WINDOWED:
                for tile in range(begin + 1, whole):
                    p, acc, row_max, row_sum = step(
                        tile, ahead + tile, q, k_room, v_room, k_ready, k_empty, v_ready, v_empty,
                        p, acc, row_max, row_sum, lo, hi, scale_log2,
                        BLOCK_N, SLOTS, S_LAYOUT, O_LAYOUT, P_LAYOUT, 2,
                    )  # fmt: skip
            for tile in range(whole, partial):
                p, acc, row_max, row_sum = step(
                    tile, ahead + tile, q, k_room, v_room, k_ready, k_empty, v_ready, v_empty,
                    p, acc, row_max, row_sum, lo, hi, scale_log2,
                    BLOCK_N, SLOTS, S_LAYOUT, O_LAYOUT, P_LAYOUT, 0,
                )  # fmt: skip
            for tile in range(partial, end):
                p, acc, row_max, row_sum = step(
                    tile, ahead + tile, q, k_room, v_room, k_ready, k_empty, v_ready, v_empty,
                    p, acc, row_max, row_sum, lo, hi, scale_log2,
                    BLOCK_N, SLOTS, S_LAYOUT, O_LAYOUT, P_LAYOUT, 1,
                )  # fmt: skip
            final = ahead + end - 1
            mbarrier.wait(v_ready.index(final % SLOTS), final // SLOTS & 1)
            acc = warpgroup_mma(p, v_room.index(final % SLOTS), acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(v_empty.index(final % SLOTS), count=1)
        else:
            tma.store_wait(0)
            last = (turn + 1) % Q_SLOTS * GROUPS + WHO
            mbarrier.arrive(q_empty.index(last), count=1, pred=turn > 0)
        count += end - begin
        some = row_sum > 0
        divisor = gl.where(some, row_sum, 1.0)
        out = acc * gl.convert_layout(1.0 / divisor, O_ROWS)[:, None]
        q.store(out.to(q.dtype))  # in the slot of the queries, which are not needed any more
        fence_async_shared()
        tma.async_copy_shared_to_global(out_box, [mine, head * D], q)
        lse = (row_max + gl.log2(divisor)) * 0.6931471805599453
        to = lse_ptr + head.to(gl.int64) * T + t
        gl.store(to, gl.where(some, lse, float("-inf")), mask=t < T)
        turn += 1
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["N", "GROUP", "window", "works"])
def band_hopper_kernel(
    q_box,
    k_box,
    v_box,
    out_box,
    lse_ptr,
    T,
    N,
    HQ,
    GROUP,
    window,
    works,
    scale_log2,
    D: gl.constexpr,
    BLOCK_N: gl.constexpr,
    SLOTS: gl.constexpr,
    REGISTERS: gl.constexpr,
    BLOCK: gl.constexpr,
    STRIDE: gl.constexpr,
    WINDOWED: gl.constexpr,
):
    """Program i of n takes the pieces of work i, i + n, ... of one batch entry. The boxes are TMA
    descriptors of q and out [T, HQ*D], k and v [N, H*D]; lse is [HQ, T], natural."""
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    dtype: gl.constexpr = q_box.dtype
    q_room = gl.allocate_shared_memory(dtype, [Q_SLOTS * GROUPS, ROWS, D], q_box.layout)
    k_room = gl.allocate_shared_memory(dtype, [SLOTS, BLOCK_N, D], k_box.layout)
    v_room = gl.allocate_shared_memory(dtype, [SLOTS, BLOCK_N, D], v_box.layout)
    q_ready = gl.allocate_shared_memory(gl.int64, [Q_SLOTS * GROUPS, 1], BARRIER)
    q_empty = gl.allocate_shared_memory(gl.int64, [Q_SLOTS * GROUPS, 1], BARRIER)
    k_ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    k_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    v_ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    v_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    for i in gl.static_range(Q_SLOTS * GROUPS):
        mbarrier.init(q_ready.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(k_ready.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=GROUPS)
        mbarrier.init(v_ready.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=GROUPS)
    fence_async_shared()
    FIRST: gl.constexpr = 0
    SECOND: gl.constexpr = 1
    # Arguments are written out, since constants in a tuple variable would become tensors.
    # fmt: off
    gl.warp_specialize(
        [
            (attend, (
                FIRST, out_box, lse_ptr, q_room, k_room, v_room, q_ready, q_empty, k_ready,
                k_empty, v_ready, v_empty, T, N, HQ, window, works, scale_log2,
                D, BLOCK_N, SLOTS, BLOCK, STRIDE, WINDOWED,
            )),
            (attend, (
                SECOND, out_box, lse_ptr, q_room, k_room, v_room, q_ready, q_empty, k_ready,
                k_empty, v_ready, v_empty, T, N, HQ, window, works, scale_log2,
                D, BLOCK_N, SLOTS, BLOCK, STRIDE, WINDOWED,
            )),
            (copy, (
                q_box, k_box, v_box, q_room, k_room, v_room, q_ready, q_empty, k_ready, k_empty,
                v_ready, v_empty, T, N, HQ, GROUP, window, works,
                D, BLOCK_N, SLOTS, BLOCK, STRIDE, WINDOWED,
            )),
        ],
        [4, 1],
        [REGISTERS, COPYING_REGISTERS],
    )
    # fmt: on
