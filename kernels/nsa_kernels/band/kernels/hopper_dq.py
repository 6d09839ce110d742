"""dQ of attention under a band (`geometry.py`) in a gated sum, for Hopper, in Gluon.

One warp copies and two warp groups compute, as in the forward (`hopper.py`). The two warp groups
take the same 64 queries, each for one of two heads that read the same keys. A group first loads its
q and the sum's gradient into registers, so that the next can be copied while it works. On the
tensor cores it starts the logits of a tile, the products of gradients and values, and the dQ of the
tile before. Meanwhile it computes the gradients of the logits.
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

from .hopper import BYTES, COPYING_REGISTERS, GROUPS, ROWS, begin_of, end_of, tiles_of


@gluon.jit
def piece_of(work, T, HQ):
    """Return the first query of a piece of work, and the first of its two heads. The last queries
    come first, because they have the most keys."""
    pairs = HQ // GROUPS
    return ((T + ROWS - 1) // ROWS - 1 - work // pairs) * ROWS, work % pairs * GROUPS


@gluon.jit
def copy(
    q_box,
    g_box,
    k_box,
    v_box,
    dq_box,
    q_room,
    g_room,
    k_room,
    v_room,
    dq_room,
    q_ready,
    q_empty,
    k_ready,
    k_empty,
    v_ready,
    v_empty,
    dq_ready,
    dq_empty,
    T,
    N,
    HQ,
    GROUP,
    window,
    works,
    D: gl.constexpr,
    BLOCK_N: gl.constexpr,
    SLOTS: gl.constexpr,
    ADDED: gl.constexpr,
    BLOCK: gl.constexpr,
    STRIDE: gl.constexpr,
    WINDOWED: gl.constexpr,
):
    count = 0  # how many tiles of keys have been copied
    turn = 0  # how many pieces of work are done
    for work in range(gl.program_id(0), works, gl.num_programs(0)):
        first, head = piece_of(work, T, HQ)
        begin, _whole, _partial, end = tiles_of(
            first, ROWS, T, N, window, BLOCK_N, BLOCK, STRIDE, WINDOWED
        )
        for group in gl.static_range(GROUPS):
            ready = q_ready.index(group)
            mbarrier.wait(q_empty.index(group), (turn & 1) ^ 1)
            mbarrier.expect(ready, 2 * ROWS * D * BYTES)
            at = [first, (head + group) * D]
            tma.async_copy_global_to_shared(q_box, at, ready, q_room.index(group))
            tma.async_copy_global_to_shared(g_box, at, ready, g_room.index(group))
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
        if ADDED:
            # Copy dq after the keys, since a group needs keys before it releases the slot of dq.
            for group in gl.static_range(GROUPS):
                ready = dq_ready.index(group)
                mbarrier.wait(dq_empty.index(group), (turn & 1) ^ 1)
                mbarrier.expect(ready, ROWS * D * BYTES)
                at = [first, (head + group) * D]
                tma.async_copy_global_to_shared(dq_box, at, ready, dq_room.index(group))
        turn += 1


@gluon.jit
def weights_of(
    s,
    start,
    lo,
    hi,
    lse,
    scale_log2,
    BLOCK_N: gl.constexpr,
    LAYOUT: gl.constexpr,
    EDGES: gl.constexpr,
):
    """Return the weights of logits. EDGES is as in ``softmax`` of `hopper.py`."""
    p = gl.exp2(s * scale_log2 - lse[:, None])
    if EDGES:
        keys = gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))
        seen = keys[None, :] < (hi - start)[:, None]
        if EDGES == 2:
            seen = seen & (keys[None, :] >= (lo - start)[:, None])
        p = gl.where(seen, p, 0.0)
    return p


@gluon.jit
def step(
    tile,
    count,
    q,
    g,
    k_room,
    v_room,
    k_ready,
    k_empty,
    v_ready,
    v_empty,
    ds,
    acc,
    lo,
    hi,
    lse,
    rest,
    scale_log2,
    BLOCK_N: gl.constexpr,
    SLOTS: gl.constexpr,
    S_LAYOUT: gl.constexpr,
    A_LAYOUT: gl.constexpr,
    FIRST: gl.constexpr,
    EDGES: gl.constexpr,
):
    """Compute the gradients of the logits of tile number ``count``. Unless this tile is the FIRST,
    add to ``acc`` the dQ of the tile before, whose logits have the gradients ``ds``."""
    slot = count % SLOTS
    before = (count - 1) % SLOTS
    parity = count // SLOTS & 1
    zero = gl.full([ROWS, BLOCK_N], 0.0, gl.float32, S_LAYOUT)
    mbarrier.wait(k_ready.index(slot), parity)
    k = k_room.index(slot).permute((1, 0))
    s = warpgroup_mma(q, k, zero, use_acc=False, is_async=True)
    mbarrier.wait(v_ready.index(slot), parity)
    v = v_room.index(slot).permute((1, 0))
    dp = warpgroup_mma(g, v, zero, use_acc=False, is_async=True)
    if FIRST:
        s = warpgroup_mma_wait(1, deps=[s])
        p = weights_of(s, tile * BLOCK_N, lo, hi, lse, scale_log2, BLOCK_N, S_LAYOUT, EDGES)
        # This wait returns at once, but it ends a basic block, so ptxas cannot move the weights
        # below the next wait.
        mbarrier.wait(k_ready.index(slot), parity)
        dp = warpgroup_mma_wait(0, deps=[dp])
        mbarrier.arrive(v_empty.index(slot), count=1)
        made = p * (dp - rest[:, None])
    else:
        acc = warpgroup_mma(ds, k_room.index(before), acc, is_async=True)
        s = warpgroup_mma_wait(2, deps=[s])
        p = weights_of(s, tile * BLOCK_N, lo, hi, lse, scale_log2, BLOCK_N, S_LAYOUT, EDGES)
        dp = warpgroup_mma_wait(1, deps=[dp])
        mbarrier.arrive(v_empty.index(slot), count=1)
        made = p * (dp - rest[:, None])
        # This wait also ends a basic block, before the wait for dQ.
        mbarrier.wait(k_ready.index(slot), parity)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(k_empty.index(before), count=1)
    return gl.convert_layout(made.to(ds.dtype), A_LAYOUT), acc


@gluon.jit
def differentiate(
    WHO: gl.constexpr,
    dq_box,
    lse_ptr,
    rest_ptr,
    gate_ptr,
    q_room,
    g_room,
    k_room,
    v_room,
    dq_room,
    q_ready,
    q_empty,
    k_ready,
    k_empty,
    v_ready,
    v_empty,
    dq_ready,
    dq_empty,
    T,
    N,
    HQ,
    window,
    works,
    scale_log2,
    D: gl.constexpr,
    BLOCK_N: gl.constexpr,
    SLOTS: gl.constexpr,
    ADDED: gl.constexpr,
    BLOCK: gl.constexpr,
    STRIDE: gl.constexpr,
    WINDOWED: gl.constexpr,
):
    """Do the work of warp group ``WHO``: dQ of one of the two heads."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    Q_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 2)
    S_ROWS: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    O_ROWS: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    EDGES: gl.constexpr = 2 if WINDOWED else 1
    dtype: gl.constexpr = dq_box.dtype
    count = 0
    turn = 0
    for work in range(gl.program_id(0), works, gl.num_programs(0)):
        first, head = piece_of(work, T, HQ)
        begin, whole, partial, end = tiles_of(
            first, ROWS, T, N, window, BLOCK_N, BLOCK, STRIDE, WINDOWED
        )
        t = first + gl.arange(0, ROWS, S_ROWS)
        hi = end_of(t, N, BLOCK, STRIDE)
        lo = begin_of(hi, window, WINDOWED)
        rows = (head + WHO) * T  # int32 suffices: 2**31 rows of q would take half a TiB
        lse = gl.load(lse_ptr + rows + t, mask=t < T, other=0.0) * 1.4426950408889634
        rest = gl.load(rest_ptr + rows + t, mask=t < T, other=0.0)
        acc = gl.full([ROWS, D], 0.0, gl.float32, O_LAYOUT)
        mbarrier.wait(q_ready.index(WHO), turn & 1)
        q = q_room.index(WHO).load(Q_LAYOUT)
        g = g_room.index(WHO).load(Q_LAYOUT)
        mbarrier.arrive(q_empty.index(WHO), count=1)
        if begin < end:
            ahead = count - begin  # ``ahead + tile`` is the tile's ``count``
            ds = gl.full([ROWS, BLOCK_N], 0.0, dtype, A_LAYOUT)
            ds, acc = step(
                begin, count, q, g, k_room, v_room, k_ready, k_empty, v_ready, v_empty, ds, acc,
                lo, hi, lse, rest, scale_log2, BLOCK_N, SLOTS, S_LAYOUT, A_LAYOUT, True, EDGES,
            )  # fmt: skip
            # Release the slot of dq, once the dq of the piece before has been copied out of it.
            tma.store_wait(0)
            mbarrier.arrive(dq_empty.index(WHO), count=1, pred=turn > 0)
            whole = gl.minimum(gl.maximum(whole, begin + 1), end)
            partial = gl.minimum(gl.maximum(partial, whole), end)
            if WINDOWED:
                for tile in range(begin + 1, whole):
                    ds, acc = step(
                        tile, ahead + tile, q, g, k_room, v_room, k_ready, k_empty, v_ready,
                        v_empty, ds, acc, lo, hi, lse, rest, scale_log2,
                        BLOCK_N, SLOTS, S_LAYOUT, A_LAYOUT, False, 2,
                    )  # fmt: skip
            for tile in range(whole, partial):
                ds, acc = step(
                    tile, ahead + tile, q, g, k_room, v_room, k_ready, k_empty, v_ready,
                    v_empty, ds, acc, lo, hi, lse, rest, scale_log2,
                    BLOCK_N, SLOTS, S_LAYOUT, A_LAYOUT, False, 0,
                )  # fmt: skip
            for tile in range(partial, end):
                ds, acc = step(
                    tile, ahead + tile, q, g, k_room, v_room, k_ready, k_empty, v_ready,
                    v_empty, ds, acc, lo, hi, lse, rest, scale_log2,
                    BLOCK_N, SLOTS, S_LAYOUT, A_LAYOUT, False, 1,
                )  # fmt: skip
            final = (ahead + end - 1) % SLOTS
            acc = warpgroup_mma(ds, k_room.index(final), acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(k_empty.index(final), count=1)
        else:
            tma.store_wait(0)
            mbarrier.arrive(dq_empty.index(WHO), count=1, pred=turn > 0)
        count += end - begin
        t = first + gl.arange(0, ROWS, O_ROWS)
        gate = gl.load(gate_ptr + rows + t, mask=t < T, other=0.0)
        acc = acc * (gate * (scale_log2 * 0.6931471805599453))[:, None]
        dq = dq_room.index(WHO)
        if ADDED:
            mbarrier.wait(dq_ready.index(WHO), turn & 1)
            acc = acc + dq.load(O_LAYOUT).to(gl.float32)
        dq.store(acc.to(dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(dq_box, [first, (head + WHO) * D], dq)
        turn += 1
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["N", "GROUP", "window", "works"])
def band_hopper_dq_kernel(
    q_box,
    g_box,
    k_box,
    v_box,
    dq_box,
    lse_ptr,
    rest_ptr,
    gate_ptr,
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
    ADDED: gl.constexpr,
    BLOCK: gl.constexpr,
    STRIDE: gl.constexpr,
    WINDOWED: gl.constexpr,
):
    """Program i of n takes the pieces of work i, i + n, ... of one batch entry: 64 queries of two
    heads each. Boxes are TMA descriptors of q, the sum's gradient, dq [T, HQ*D], k, v [N, H*D]. lse
    (natural), rest (dgate), gate: [HQ, T]. If ADDED, add dq to the values in memory."""
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    dtype: gl.constexpr = q_box.dtype
    q_room = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, D], q_box.layout)
    g_room = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, D], g_box.layout)
    dq_room = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, D], dq_box.layout)
    k_room = gl.allocate_shared_memory(dtype, [SLOTS, BLOCK_N, D], k_box.layout)
    v_room = gl.allocate_shared_memory(dtype, [SLOTS, BLOCK_N, D], v_box.layout)
    q_ready = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], BARRIER)
    q_empty = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], BARRIER)
    dq_ready = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], BARRIER)
    dq_empty = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], BARRIER)
    k_ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    k_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    v_ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    v_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    for i in gl.static_range(GROUPS):
        mbarrier.init(q_ready.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
        mbarrier.init(dq_ready.index(i), count=1)
        mbarrier.init(dq_empty.index(i), count=1)
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
            (differentiate, (
                FIRST, dq_box, lse_ptr, rest_ptr, gate_ptr, q_room, g_room, k_room, v_room,
                dq_room, q_ready, q_empty, k_ready, k_empty, v_ready, v_empty, dq_ready, dq_empty,
                T, N, HQ, window, works, scale_log2,
                D, BLOCK_N, SLOTS, ADDED, BLOCK, STRIDE, WINDOWED,
            )),
            (differentiate, (
                SECOND, dq_box, lse_ptr, rest_ptr, gate_ptr, q_room, g_room, k_room, v_room,
                dq_room, q_ready, q_empty, k_ready, k_empty, v_ready, v_empty, dq_ready, dq_empty,
                T, N, HQ, window, works, scale_log2,
                D, BLOCK_N, SLOTS, ADDED, BLOCK, STRIDE, WINDOWED,
            )),
            (copy, (
                q_box, g_box, k_box, v_box, dq_box, q_room, g_room, k_room, v_room,
                dq_room, q_ready, q_empty, k_ready, k_empty, v_ready, v_empty, dq_ready, dq_empty,
                T, N, HQ, GROUP, window, works,
                D, BLOCK_N, SLOTS, ADDED, BLOCK, STRIDE, WINDOWED,
            )),
        ],
        [4, 1],
        [REGISTERS, COPYING_REGISTERS],
    )
    # fmt: on
