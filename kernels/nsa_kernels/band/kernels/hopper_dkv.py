"""dK and dV of attention under a band (`geometry.py`) in a gated sum, for Hopper, in Gluon.

One warp copies and two warp groups compute, as in the forward (`hopper.py`). Each warp group adds
up dK and dV of 64 keys. The copying warp goes over the queries that see some of the program's 128
keys. A step is 64 queries of one of the heads that read these keys. If several programs take the
same keys, each has a share of the steps. TMA copies q and the sum's gradient, but not LSE, gate and
``rest`` (the gate's gradient). A warp group skips steps whose queries see none of its keys.
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

from .hopper import BYTES, COPYING_REGISTERS, GROUPS, ROWS

TILE = gl.constexpr(64)  # queries of a step


@gluon.jit
def walk_of(
    T,
    N,
    H,
    GROUP,
    window,
    shares,
    BLOCK: gl.constexpr,
    STRIDE: gl.constexpr,
    WINDOWED: gl.constexpr,
):
    """Return the first key, the key head, the share and the steps of this program.

    The steps are described by four numbers: the first query that sees some key, the number of query
    tiles, the first step, and the end of the steps.

    A step takes head ``step % GROUP`` of the group and tile ``step // GROUP``. Tile 0 has the last
    queries, so programs that run at the same time read about the same queries. Program 0 has the
    first keys, which the most queries see.
    """
    work = gl.program_id(0)
    share = work % shares
    kv_head = work // shares % H
    first = work // shares // H * (ROWS * GROUPS)
    begin = first * STRIDE + (BLOCK - 1)
    behind = T
    if WINDOWED:
        keys_end = gl.minimum(first + ROWS * GROUPS, N)
        behind = gl.minimum(T, (keys_end + window - 1) * STRIDE + (BLOCK - 1))
    tiles = (gl.maximum(behind - begin, 0) + TILE - 1) // TILE
    walk = (tiles * GROUP + shares - 1) // shares
    origin = gl.minimum(share * walk, tiles * GROUP)
    return first, kv_head, share, begin, tiles, origin, gl.minimum(origin + walk, tiles * GROUP)


@gluon.jit
def copy(
    q_box,
    g_box,
    k_box,
    v_box,
    lse_ptr,
    rest_ptr,
    gate_ptr,
    q_room,
    g_room,
    k_room,
    v_room,
    lse_room,
    rest_room,
    gate_room,
    q_ready,
    q_empty,
    g_ready,
    g_empty,
    k_ready,
    T,
    N,
    H,
    GROUP,
    window,
    shares,
    D: gl.constexpr,
    SLOTS: gl.constexpr,
    BLOCK: gl.constexpr,
    STRIDE: gl.constexpr,
    WINDOWED: gl.constexpr,
):
    LINE: gl.constexpr = gl.BlockedLayout([2], [32], [1], [0])
    first, kv_head, _share, begin, tiles, origin, end = walk_of(
        T, N, H, GROUP, window, shares, BLOCK, STRIDE, WINDOWED
    )
    ready = k_ready.index(0)
    mbarrier.expect(ready, 2 * GROUPS * ROWS * D * BYTES)
    for group in gl.static_range(GROUPS):
        at = [first + ROWS * group, kv_head * D]
        tma.async_copy_global_to_shared(k_box, at, ready, k_room.index(group))
        tma.async_copy_global_to_shared(v_box, at, ready, v_room.index(group))
    for step in range(origin, end):
        slot = (step - origin) % SLOTS
        parity = ((step - origin) // SLOTS & 1) ^ 1
        head = kv_head * GROUP + step % GROUP
        start = begin + (tiles - 1 - step // GROUP) * TILE
        at = [start, head * D]
        mbarrier.wait(q_empty.index(slot), parity)
        mbarrier.expect(q_ready.index(slot), TILE * D * BYTES)
        tma.async_copy_global_to_shared(q_box, at, q_ready.index(slot), q_room.index(slot))
        t = start + gl.arange(0, TILE, LINE)
        rows = head.to(gl.int64) * T
        lse = gl.load(lse_ptr + rows + t, mask=t < T, other=0.0)
        rest = gl.load(rest_ptr + rows + t, mask=t < T, other=0.0)
        gate = gl.load(gate_ptr + rows + t, mask=t < T, other=0.0)
        mbarrier.wait(g_empty.index(slot), parity)
        mbarrier.expect(g_ready.index(slot), TILE * D * BYTES)
        tma.async_copy_global_to_shared(g_box, at, g_ready.index(slot), g_room.index(slot))
        gate_room.index(slot).store(gate)
        lse_room.index(slot).store(lse * 1.4426950408889634)
        rest_room.index(slot).store(rest)
        mbarrier.arrive(q_ready.index(slot), count=1)


@gluon.jit
def step_of(
    count,
    start,
    k,
    v,
    q_room,
    g_room,
    lse_room,
    rest_room,
    gate_room,
    q_ready,
    q_empty,
    g_ready,
    g_empty,
    dk,
    dv,
    window,
    scale_log2,
    SLOTS: gl.constexpr,
    STRIDE: gl.constexpr,
    WINDOWED: gl.constexpr,
    S_LAYOUT: gl.constexpr,
    A_LAYOUT: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Do step ``count``. If MASKED, some queries do not see all keys of the warp group. ``start``:
    the first query that sees the first of these keys, counted from the first query of the step."""
    COLUMNS: gl.constexpr = gl.SliceLayout(0, S_LAYOUT)
    slot = count % SLOTS
    parity = count // SLOTS & 1
    q = q_room.index(slot)
    g = g_room.index(slot)
    zero = gl.full([ROWS, TILE], 0.0, gl.float32, S_LAYOUT)
    mbarrier.wait(q_ready.index(slot), parity)
    s = warpgroup_mma(k, q.permute((1, 0)), zero, use_acc=False, is_async=True)
    mbarrier.wait(g_ready.index(slot), parity)
    dp = warpgroup_mma(v, g.permute((1, 0)), zero, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s])
    lse = lse_room.index(slot).load(COLUMNS)
    p = gl.exp2(s * scale_log2 - lse[None, :])
    if MASKED:
        t = gl.arange(0, TILE, COLUMNS)
        sees_from = start + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT)) * STRIDE
        seen = t[None, :] >= sees_from[:, None]
        if WINDOWED:
            seen = seen & (t[None, :] < (sees_from + window * STRIDE)[:, None])
        p = gl.where(seen, p, 0.0)
    p = p * gate_room.index(slot).load(COLUMNS)[None, :]
    weights = gl.convert_layout(p.to(q.dtype), A_LAYOUT)
    dv = warpgroup_mma(weights, g, dv, is_async=True)
    dp = warpgroup_mma_wait(1, deps=[dp])
    rest = rest_room.index(slot).load(COLUMNS)
    ds = p * (dp - rest[None, :])
    # This wait returns at once, but it ends a basic block. So ptxas does not move the code above
    # this wait to a place below the later waits.
    mbarrier.wait(q_ready.index(slot), parity)
    ds = gl.convert_layout(ds.to(q.dtype), A_LAYOUT)
    dk = warpgroup_mma(ds, q, dk, is_async=True)
    dk, dv = warpgroup_mma_wait(0, deps=[dk, dv])
    mbarrier.arrive(g_empty.index(slot), count=1)
    mbarrier.arrive(q_empty.index(slot), count=1)
    return dk, dv


@gluon.jit
def parts_of(
    sees_from,
    tiles,
    origin,
    end,
    GROUP,
    window,
    STRIDE: gl.constexpr,
    WINDOWED: gl.constexpr,
):
    """Return the step numbers begin <= whole <= partial <= behind, from ``origin`` to ``end``.

    In the steps begin to behind - 1, some query sees some of the warp group's keys. The steps whole
    to partial - 1 need no mask. ``sees_from`` is the first query that sees the first of the 64
    keys, counted from the first query of the program.
    """
    all_from = sees_from + (ROWS - 1) * STRIDE
    behind = gl.maximum(tiles - (sees_from >> 6), 0)
    partial = gl.maximum(tiles - ((all_from + 63) >> 6), 0)
    if WINDOWED:
        begin = gl.maximum(tiles - 1 - ((all_from + window * STRIDE - 1) >> 6), 0)
        whole = gl.maximum(tiles - 1 - ((sees_from + window * STRIDE - 64) >> 6), begin)
    else:
        begin = 0
        whole = 0
    begin = gl.minimum(gl.maximum(begin * GROUP, origin), end)
    behind = gl.minimum(gl.maximum(behind * GROUP, begin), end)
    whole = gl.minimum(gl.maximum(whole * GROUP, begin), behind)
    partial = gl.minimum(gl.maximum(partial * GROUP, whole), behind)
    return begin, whole, partial, behind


@gluon.jit
def pass_by(begin, end, q_ready, q_empty, g_ready, g_empty, SLOTS: gl.constexpr):
    """Skip steps that only the other warp group needs.

    Wait for each slot, so that this group releases the slot exactly once each time it is filled.
    """
    for count in range(begin, end):
        slot = count % SLOTS
        parity = count // SLOTS & 1
        mbarrier.wait(q_ready.index(slot), parity)
        mbarrier.arrive(q_empty.index(slot), count=1)
        mbarrier.wait(g_ready.index(slot), parity)
        mbarrier.arrive(g_empty.index(slot), count=1)


@gluon.jit
def differentiate(
    WHO: gl.constexpr,
    dk_ptr,
    dv_ptr,
    q_room,
    g_room,
    k_room,
    v_room,
    lse_room,
    rest_room,
    gate_room,
    q_ready,
    q_empty,
    g_ready,
    g_empty,
    k_ready,
    T,
    N,
    H,
    GROUP,
    window,
    shares,
    share_stride,
    scale_log2,
    D: gl.constexpr,
    SLOTS: gl.constexpr,
    BLOCK: gl.constexpr,
    STRIDE: gl.constexpr,
    WINDOWED: gl.constexpr,
):
    """Do the work of warp group ``WHO``: dK and dV of its 64 keys."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    first, kv_head, share, begin, tiles, origin, end = walk_of(
        T, N, H, GROUP, window, shares, BLOCK, STRIDE, WINDOWED
    )
    key = first + ROWS * WHO
    sees_from = key * STRIDE + (BLOCK - 1) - begin
    some, whole, partial, behind = parts_of(
        sees_from, tiles, origin, end, GROUP, window, STRIDE, WINDOWED
    )
    k = k_room.index(WHO)
    v = v_room.index(WHO)
    dk = gl.full([ROWS, D], 0.0, gl.float32, O_LAYOUT)
    dv = gl.full([ROWS, D], 0.0, gl.float32, O_LAYOUT)
    pass_by(0, some - origin, q_ready, q_empty, g_ready, g_empty, SLOTS)
    mbarrier.wait(k_ready.index(0), 0)
    if WINDOWED:
        for step in range(some, whole):
            start = sees_from - (tiles - 1 - step // GROUP) * TILE
            dk, dv = step_of(
                step - origin, start, k, v, q_room, g_room, lse_room, rest_room, gate_room,
                q_ready, q_empty, g_ready, g_empty, dk, dv, window, scale_log2,
                SLOTS, STRIDE, WINDOWED, S_LAYOUT, A_LAYOUT, True,
            )  # fmt: skip
    for step in range(whole, partial):
        dk, dv = step_of(
            step - origin, 0, k, v, q_room, g_room, lse_room, rest_room, gate_room,
            q_ready, q_empty, g_ready, g_empty, dk, dv, window, scale_log2,
            SLOTS, STRIDE, WINDOWED, S_LAYOUT, A_LAYOUT, False,
        )  # fmt: skip
    for step in range(partial, behind):
        start = sees_from - (tiles - 1 - step // GROUP) * TILE
        dk, dv = step_of(
            step - origin, start, k, v, q_room, g_room, lse_room, rest_room, gate_room,
            q_ready, q_empty, g_ready, g_empty, dk, dv, window, scale_log2,
            SLOTS, STRIDE, WINDOWED, S_LAYOUT, A_LAYOUT, True,
        )  # fmt: skip
    pass_by(behind - origin, end - origin, q_ready, q_empty, g_ready, g_empty, SLOTS)
    of_keys = gl.arange(0, ROWS, gl.SliceLayout(1, O_LAYOUT))
    columns = gl.arange(0, D, gl.SliceLayout(0, O_LAYOUT))
    # Clear the gradients of keys that no query sees: weight 0 times an infinite value is NaN.
    seen = (key + of_keys) * STRIDE + (BLOCK - 1) < T
    dk = gl.where(seen[:, None], dk * (scale_log2 * 0.6931471805599453), 0.0)
    dv = gl.where(seen[:, None], dv, 0.0)
    at = share.to(gl.int64) * share_stride + (key.to(gl.int64) * H + kv_head) * D
    to = of_keys[:, None] * (H * D) + columns[None, :]
    inside = (key + of_keys < N)[:, None] & (columns >= 0)[None, :]
    gl.store(dv_ptr + at + to, dv.to(dv_ptr.dtype.element_ty), mask=inside)
    gl.store(dk_ptr + at + to, dk.to(dk_ptr.dtype.element_ty), mask=inside)


@gluon.jit(do_not_specialize=["N", "H", "GROUP", "window", "shares", "share_stride"])
def band_hopper_dkv_kernel(
    q_box,
    g_box,
    k_box,
    v_box,
    lse_ptr,
    rest_ptr,
    gate_ptr,
    dk_ptr,
    dv_ptr,
    T,
    N,
    H,
    GROUP,
    window,
    shares,
    share_stride,
    scale_log2,
    D: gl.constexpr,
    SLOTS: gl.constexpr,
    REGISTERS: gl.constexpr,
    BLOCK: gl.constexpr,
    STRIDE: gl.constexpr,
    WINDOWED: gl.constexpr,
):
    """Program (key tile, key head, share), on one grid axis: write dk and dv [N, H*D].

    The share changes fastest. Tensors are of one batch entry. Boxes are TMA descriptors of q and
    the sum's gradient [T, HQ*D], and of k and v [N, H*D]. lse (natural), rest (dgate) and gate are
    [HQ, T]. Shares are ``share_stride`` elements apart.
    """
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    dtype: gl.constexpr = q_box.dtype
    q_room = gl.allocate_shared_memory(dtype, [SLOTS, TILE, D], q_box.layout)
    g_room = gl.allocate_shared_memory(dtype, [SLOTS, TILE, D], g_box.layout)
    k_room = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, D], k_box.layout)
    v_room = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, D], v_box.layout)
    lse_room = gl.allocate_shared_memory(gl.float32, [SLOTS, TILE], FLAT)
    rest_room = gl.allocate_shared_memory(gl.float32, [SLOTS, TILE], FLAT)
    gate_room = gl.allocate_shared_memory(gl.float32, [SLOTS, TILE], FLAT)
    q_ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    q_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    g_ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    g_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    k_ready = gl.allocate_shared_memory(gl.int64, [1, 1], BARRIER)
    mbarrier.init(k_ready.index(0), count=1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(q_ready.index(i), count=2)  # queries arrive once, and LSE, rest, gate once
        mbarrier.init(q_empty.index(i), count=GROUPS)
        mbarrier.init(g_ready.index(i), count=1)
        mbarrier.init(g_empty.index(i), count=GROUPS)
    fence_async_shared()
    FIRST: gl.constexpr = 0
    SECOND: gl.constexpr = 1
    # Arguments are written out, since constants in a tuple variable would become tensors.
    # fmt: off
    gl.warp_specialize(
        [
            (differentiate, (
                FIRST, dk_ptr, dv_ptr, q_room, g_room, k_room, v_room, lse_room, rest_room,
                gate_room, q_ready, q_empty, g_ready, g_empty, k_ready,
                T, N, H, GROUP, window, shares, share_stride, scale_log2,
                D, SLOTS, BLOCK, STRIDE, WINDOWED,
            )),
            (differentiate, (
                SECOND, dk_ptr, dv_ptr, q_room, g_room, k_room, v_room, lse_room, rest_room,
                gate_room, q_ready, q_empty, g_ready, g_empty, k_ready,
                T, N, H, GROUP, window, shares, share_stride, scale_log2,
                D, SLOTS, BLOCK, STRIDE, WINDOWED,
            )),
            (copy, (
                q_box, g_box, k_box, v_box, lse_ptr, rest_ptr, gate_ptr, q_room, g_room, k_room,
                v_room, lse_room, rest_room, gate_room, q_ready, q_empty, g_ready, g_empty, k_ready,
                T, N, H, GROUP, window, shares,
                D, SLOTS, BLOCK, STRIDE, WINDOWED,
            )),
        ],
        [4, 1],
        [REGISTERS, COPYING_REGISTERS],
    )
    # fmt: on
