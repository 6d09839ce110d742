"""The main kernel of the block-major backward in Gluon, for Hopper (see `backward.py`).

The kernel in Triton loads a tile of q and dO and waits for it. Here a multiprocessor has one
program. Some of its warps copy tiles in advance to shared memory, up to four of q and four of dO.
Two warp groups alternate on these tiles: group 0 takes the even tiles, group 1 the odd ones. They
share K and V, and each adds up dK and dV over its own tiles. In the end, group 0 adds the dK of
both groups, and group 1 the dV of both groups. So the order of additions does not depend on timing.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .hopper import COPIES, ROWS, SCORES, SWIZZLED, block_rows, in_turn, neighbours
from .plan import CHUNK_AND_HEAD, LISTS

D = gl.constexpr(128)
BYTES = gl.constexpr(2)  # bytes of an element
Q_SLOTS = gl.constexpr(4)
"""Tiles of q, and of dO, in shared memory at once. In the end, two sums take the place of q."""
G_SLOTS = gl.constexpr(4)
LINES = gl.constexpr(3)
"""How many floats a row (query, head) has: LSE, rest (sum of out * dO) and gate."""
GROUPS = gl.constexpr(2)
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
"""The layout of dK, dV (keys by columns) and dQ (rows by columns) in results of ``wgmma``."""
WEIGHTS = gl.constexpr(
    gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]), 2)
)
"""The layout of an operand of ``wgmma``, keys by rows, in registers."""
GIVEN = gl.constexpr(gl.SwizzledSharedLayout(4, 1, 8, [1, 0]))
"""The layout, in shared memory, of a sum that one warp group hands to the other."""
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))

BOXED_FROM = 8
"""The fewest heads of a group that TMA can copy as a box: eight rows are swizzled together."""


def takes_boxes(group: int) -> bool:
    """Return whether one warp copies q and dO in boxes, by TMA, for groups of this size. Otherwise
    four warps copy them by ``cp.async``."""
    return group >= BOXED_FROM


def constants_of(group: int) -> dict[str, Any]:
    """Return the constants and options of a launch, except ``QUERIES`` and ``GATED``."""
    # 384 threads (three warp groups, even if the third has one busy warp) share 64 Ki registers.
    options = {"num_warps": 4, "num_stages": 1, "maxnreg": 168}
    return {"G": group, "BOXED": takes_boxes(group), **options}


@gluon.jit
def line_tokens(entries_ptr, first, n, G: gl.constexpr):
    """Return the token of each row of the tile that begins at query ``first``, for ``copy_lines``.

    Rows after the last query repeat that query's token, with weight 0. They cannot spoil a finite
    sum: if values of that token are not finite, the sums of the item are not finite anyway.
    """
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    query = first + gl.arange(0, ROWS, LINE) // G
    return gl.load(entries_ptr + gl.minimum(query, n - 1))


@gluon.jit
def copy_lines(
    lse_ptr, rest_ptr, gate_ptr, token, HQ, lines, slot, G: gl.constexpr, GATED: gl.constexpr
):
    """Start to copy the LSE, rest and, if GATED, gate of each row."""
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    at = token * HQ + gl.arange(0, ROWS, LINE) % G
    async_copy.async_copy_global_to_shared(lines.index(slot * LINES), lse_ptr + at)
    async_copy.async_copy_global_to_shared(lines.index(slot * LINES + 1), rest_ptr + at)
    if GATED:
        async_copy.async_copy_global_to_shared(lines.index(slot * LINES + 2), gate_ptr + at)


@gluon.jit
def tile_tokens(entries_ptr, first, n, G: gl.constexpr):
    """Return what ``line_tokens`` does, in the layout of ``copy_rows``."""
    query = first + gl.arange(0, ROWS, gl.SliceLayout(1, COPIES)) // G
    return gl.load(entries_ptr + gl.minimum(query, n - 1))


@gluon.jit
def copy_rows(ptr, token, stride_t, stride_h, tile, G: gl.constexpr):
    """Start to copy rows (``token``, head) of q or dO."""
    head = gl.arange(0, ROWS, gl.SliceLayout(1, COPIES)) % G
    column = gl.arange(0, D, gl.SliceLayout(0, COPIES))
    at = (token * stride_t + head * stride_h)[:, None] + column[None, :]
    async_copy.async_copy_global_to_shared(tile, ptr + at)


@gluon.jit
def copy_boxes(box, first_row, token, stride_t, boxes, slot, ready, G: gl.constexpr):
    """Start to copy the tokens of a tile to ``boxes`` [slots * 2 * tokens, G, 64]."""
    TOKENS: gl.constexpr = ROWS // G
    LAYOUT: gl.constexpr = gl.BlockedLayout([TOKENS], [32], [gl.num_warps()], [0])
    which = gl.arange(0, TOKENS, LAYOUT)
    mbarrier.expect(ready, ROWS * D * BYTES)
    for x in gl.static_range(TOKENS):
        row = first_row + gl.sum(gl.where(which == x, token, 0), 0) * stride_t
        for half in gl.static_range(2):
            to = boxes.index((slot * 2 + half) * TOKENS + x)
            tma.async_copy_global_to_shared(box, [row, half * 64], ready, to)


@gluon.jit
def copy(
    q,
    g,
    lse_ptr,
    rest_ptr,
    gate_ptr,
    entries_ptr,
    q_room,
    g_room,
    line_room,
    q_ready,
    q_empty,
    g_ready,
    g_empty,
    q_row,
    q_st,
    q_sh,
    g_row,
    g_st,
    g_sh,
    HQ,
    n,
    tiles,
    G: gl.constexpr,
    GATED: gl.constexpr,
    BOXED: gl.constexpr,
):
    """Copy tiles. If BOXED, token t of the chunk begins at row ``q_row + t * q_st`` of q."""
    TOKENS: gl.constexpr = ROWS // G
    line = line_tokens(entries_ptr, 0, n, G)
    if BOXED:
        LAYOUT: gl.constexpr = gl.BlockedLayout([TOKENS], [32], [gl.num_warps()], [0])
        which = gl.arange(0, TOKENS, LAYOUT)
        token = gl.load(entries_ptr + gl.minimum(which, n - 1))
        q_boxes = q_room._reinterpret(q_room.dtype, [Q_SLOTS * 2 * TOKENS, G, 64], SWIZZLED)
        g_boxes = g_room._reinterpret(g_room.dtype, [G_SLOTS * 2 * TOKENS, G, 64], SWIZZLED)
    else:
        token = tile_tokens(entries_ptr, 0, n, G)
    for i in range(tiles):
        here = token
        line_here = line
        # Load the tokens of the next tile before waiting for a free slot for this tile.
        if BOXED:
            token = gl.load(entries_ptr + gl.minimum((i + 1) * TOKENS + which, n - 1))
        else:
            token = tile_tokens(entries_ptr, (i + 1) * TOKENS, n, G)
        line = line_tokens(entries_ptr, (i + 1) * TOKENS, n, G)
        q_slot = i % Q_SLOTS
        g_slot = i % G_SLOTS
        q_there = q_ready.index(q_slot)
        g_there = g_ready.index(g_slot)
        mbarrier.wait(q_empty.index(q_slot), (i // Q_SLOTS & 1) ^ 1)
        if BOXED:
            copy_boxes(q, q_row, here, q_st, q_boxes, q_slot, q_there, G)
        else:
            copy_rows(q, here, q_st, q_sh, q_room.index(q_slot), G)
        copy_lines(lse_ptr, rest_ptr, gate_ptr, line_here, HQ, line_room, q_slot, G, GATED)
        async_copy.mbarrier_arrive(q_there, increment_count=False)
        mbarrier.wait(g_empty.index(g_slot), (i // G_SLOTS & 1) ^ 1)
        if BOXED:
            copy_boxes(g, g_row, here, g_st, g_boxes, g_slot, g_there, G)
        else:
            copy_rows(g, here, g_st, g_sh, g_room.index(g_slot), G)
            async_copy.mbarrier_arrive(g_there, increment_count=False)
    async_copy.wait_group(0)


@gluon.jit
def widened(x):
    """Convert 16-bit ``x`` to fp32. The assembly keeps the compiler from using unrounded ``x``."""
    if x.dtype == gl.bfloat16:
        code: gl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
    else:
        code: gl.constexpr = """{
            .reg .b16 low, high;
            mov.b32 {low, high}, $2;
            cvt.f32.f16 $0, low;
            cvt.f32.f16 $1, high;
        }"""
    return gl.inline_asm_elementwise(code, "=f,=f,r", [x], gl.float32, True, 2)


@gluon.jit
def probabilities(
    s,
    lines,
    slot,
    entries_ptr,
    first,
    n,
    origin,
    scale_log2,
    G: gl.constexpr,
    GATED: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Return probabilities [keys, rows] of scores ``s``, times the gate if GATED."""
    COLUMNS: gl.constexpr = gl.SliceLayout(0, SCORES)
    lse = lines.index(slot * LINES).load(COLUMNS) * 1.4426950408889634
    p = gl.exp2(s * scale_log2 - lse[None, :])
    if MASKED:
        query = first + gl.arange(0, ROWS, COLUMNS) // G
        # Rows after the last query see no key.
        token = gl.load(entries_ptr + query, mask=query < n, other=-0x40000000)
        key = origin + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
        p = gl.where(key[:, None] <= token[None, :], p, 0.0)
    if GATED:
        p = p * lines.index(slot * LINES + 2).load(COLUMNS)[None, :]
    return p


@gluon.jit
def step_of(
    i,
    k,
    k_turned,
    v,
    q_room,
    g_room,
    line_room,
    ds_room,
    q_ready,
    q_empty,
    g_ready,
    g_empty,
    dk,
    dv,
    part_ptr,
    entries_ptr,
    n,
    origin,
    scale_log2,
    G: gl.constexpr,
    GATED: gl.constexpr,
    BOXED: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Do tile ``i``. If MASKED, some queries do not see all keys, or some rows have no query."""
    TOKENS: gl.constexpr = ROWS // G
    OUT: gl.constexpr = neighbours(D)
    dtype: gl.constexpr = part_ptr.dtype.element_ty
    q_slot = i % Q_SLOTS
    g_slot = i % G_SLOTS
    q_parity = i // Q_SLOTS & 1
    q = q_room.index(q_slot)
    g = g_room.index(g_slot)
    zero = gl.zeros([ROWS, ROWS], gl.float32, SCORES)
    mbarrier.wait(q_ready.index(q_slot), q_parity)
    if not BOXED:
        fence_async_shared()
    s = warpgroup_mma(k, q.permute((1, 0)), zero, use_acc=False, is_async=True)
    mbarrier.wait(g_ready.index(g_slot), i // G_SLOTS & 1)
    if not BOXED:
        fence_async_shared()
    dp = warpgroup_mma(v, g.permute((1, 0)), zero, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s])
    p = probabilities(
        s, line_room, q_slot, entries_ptr, i * TOKENS, n, origin, scale_log2, G, GATED, MASKED
    )
    rounded = p.to(dtype)
    dv = warpgroup_mma(gl.convert_layout(rounded, WEIGHTS), g, dv, is_async=True)
    rest = line_room.index(q_slot * LINES + 1).load(gl.SliceLayout(0, SCORES))
    dp = warpgroup_mma_wait(1, deps=[dp])
    # Use ``rounded``, which takes 16 registers up to this line. ``p`` would take 32.
    ds = (widened(rounded) * (dp - rest[None, :])).to(dtype)
    # This wait returns at once, but it ends a basic block. So ptxas does not move the code above
    # this wait to a place below the later waits.
    mbarrier.wait(q_ready.index(q_slot), q_parity)
    ds_room.store(ds)
    dk = warpgroup_mma(gl.convert_layout(ds, WEIGHTS), q, dk, is_async=True)
    fence_async_shared()
    # Three products in flight would need too many registers, so ptxas would serialise them.
    dk, dv = warpgroup_mma_wait(0, deps=[dk, dv])
    gl.thread_barrier()
    zeros = gl.zeros([ROWS, D], gl.float32, SUMS)
    dq = warpgroup_mma(ds_room.permute((1, 0)), k_turned, zeros, use_acc=False, is_async=True)
    mbarrier.arrive(g_empty.index(g_slot), count=1)
    mbarrier.arrive(q_empty.index(q_slot), count=1)
    dq = warpgroup_mma_wait(0, deps=[dq])
    out = gl.convert_layout(in_turn(dq.to(dtype), D), OUT)
    row = gl.arange(0, ROWS, gl.SliceLayout(1, OUT))
    column = gl.arange(0, D, gl.SliceLayout(0, OUT))
    # Only ``dq_kernel`` reads the partial dQ, so it should not evict q from L2.
    gl.store(
        part_ptr + (i * ROWS + row)[:, None] * D + column[None, :],
        out,
        mask=(row < n * G - i * ROWS)[:, None],
        eviction_policy="evict_first",
    )
    return dk, dv


@gluon.jit
def tiles_of(entries_ptr, n, origin, G: gl.constexpr):
    """Return the number of tiles, the end of the tiles that need a mask (their first tokens do not
    see the last key), and the number of full tiles."""
    TOKENS: gl.constexpr = ROWS // G
    LAYOUT: gl.constexpr = gl.BlockedLayout([2], [32], [gl.num_warps()], [0])
    j = gl.arange(0, ROWS, LAYOUT)
    token = gl.load(entries_ptr + gl.minimum(j, n - 1))
    # Tokens ascend, so at most 63 tokens see some key and are before the last key. If sequences
    # overlap (malformed cu_seqlens), there may be more such tokens. Then all tiles are masked.
    early = gl.sum(((token < origin + (ROWS - 1)) & (j < n)).to(gl.int32), 0)
    early = gl.where(early == ROWS, n, early)
    whole = n // TOKENS
    return (n + TOKENS - 1) // TOKENS, gl.minimum((early + TOKENS - 1) // TOKENS, whole), whole


@gluon.jit
def next_own_tile(tile, WHO: gl.constexpr):
    """Return the first tile of group ``WHO`` that is not before ``tile``."""
    return tile + ((tile ^ WHO) & 1)


@gluon.jit
def write_sum(
    total,
    ptr,
    spill_ptr,
    first_row,
    stride,
    start,
    first_key,
    key_end,
    WHICH: gl.constexpr,
):
    """Add dK (WHICH 0) or dV (1) to the block's totals if the item is its first, else store it."""
    row = gl.arange(0, ROWS, gl.SliceLayout(1, SUMS))
    column = gl.arange(0, D, gl.SliceLayout(0, SUMS))
    held = ((first_key + row < key_end)[:, None]) & (column >= 0)[None, :]
    if start == 0:
        to = ptr + first_row + (row * stride)[:, None] + column[None, :]
        gl.store(to, gl.load(to, mask=held, other=0.0) + total, mask=held)
    else:
        to = spill_ptr + (row * (2 * D))[:, None] + (WHICH * D + column)[None, :]
        gl.store(to, total, mask=held)


@gluon.jit
def differentiate(
    WHO: gl.constexpr,
    k_ptr,
    v_ptr,
    part_ptr,
    dk_ptr,
    dv_ptr,
    spill_ptr,
    entries_ptr,
    k,
    k_turned,
    v,
    q_room,
    g_room,
    line_room,
    ds_rooms,
    q_ready,
    q_empty,
    g_ready,
    g_empty,
    keys_ready,
    all_done,
    sums_given,
    k_st,
    v_st,
    first_row,
    stride,
    start,
    n,
    first_key,
    key_end,
    origin,
    scale_log2,
    sm_scale,
    G: gl.constexpr,
    GATED: gl.constexpr,
    BOXED: gl.constexpr,
):
    """Do the work of warp group ``WHO``: the gradients of every second tile."""
    # Load K or V, while the copying warps copy the first tiles.
    if WHO == 0:
        k_rows = block_rows(k_ptr, first_key, key_end, k_st, D)
        tiles, masked, whole = tiles_of(entries_ptr, n, origin, G)
        k.store(k_rows)
        # K is reordered, so that a thread has adjacent columns of dQ. The thread stores 16 bytes at
        # a time, without a detour through shared memory.
        k_turned.store(in_turn(k_rows, D))
    else:
        v_rows = block_rows(v_ptr, first_key, key_end, v_st, D)
        tiles, masked, whole = tiles_of(entries_ptr, n, origin, G)
        v.store(v_rows)
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(keys_ready.index(0), count=1)
    mbarrier.wait(keys_ready.index(0), 0)
    ds_room = ds_rooms.index(WHO)
    dk = gl.zeros([ROWS, D], gl.float32, SUMS)
    dv = gl.zeros([ROWS, D], gl.float32, SUMS)
    for i in range(WHO, masked, GROUPS):
        dk, dv = step_of(
            i, k, k_turned, v, q_room, g_room, line_room, ds_room, q_ready, q_empty, g_ready,
            g_empty, dk, dv, part_ptr, entries_ptr, n, origin, scale_log2, G, GATED, BOXED, True,
        )  # fmt: skip
    for i in range(next_own_tile(masked, WHO), whole, GROUPS):
        dk, dv = step_of(
            i, k, k_turned, v, q_room, g_room, line_room, ds_room, q_ready, q_empty, g_ready,
            g_empty, dk, dv, part_ptr, entries_ptr, n, origin, scale_log2, G, GATED, BOXED, False,
        )  # fmt: skip
    for i in range(next_own_tile(whole, WHO), tiles, GROUPS):
        dk, dv = step_of(
            i, k, k_turned, v, q_room, g_room, line_room, ds_room, q_ready, q_empty, g_ready,
            g_empty, dk, dv, part_ptr, entries_ptr, n, origin, scale_log2, G, GATED, BOXED, True,
        )  # fmt: skip
    # Wait until no group reads tiles any more. Then each group stores one sum in their memory.
    gl.thread_barrier()
    mbarrier.arrive(all_done.index(0), count=1)
    mbarrier.wait(all_done.index(0), 0)
    sums = q_room._reinterpret(gl.float32, [GROUPS, ROWS, D], GIVEN)
    if WHO == 0:
        sums.index(0).store(dv)
    else:
        sums.index(1).store(dk)
    gl.thread_barrier()
    mbarrier.arrive(sums_given.index(0), count=1)
    mbarrier.wait(sums_given.index(0), 0)
    if WHO == 0:
        dk = (dk + sums.index(1).load(SUMS)) * sm_scale
        write_sum(dk, dk_ptr, spill_ptr, first_row, stride, start, first_key, key_end, 0)
    else:
        dv = dv + sums.index(0).load(SUMS)
        write_sum(dv, dv_ptr, spill_ptr, first_row, stride, start, first_key, key_end, 1)


@gluon.jit(
    do_not_specialize=(*CHUNK_AND_HEAD, "H", "n_bins", "segment_size", "spill_slots"), **LISTS
)
def hopper_backward_kernel(
    q,
    k_ptr,
    v_ptr,
    g,
    lse_ptr,
    rest_ptr,
    gate_ptr,
    part_ptr,
    dk_ptr,
    dv_ptr,
    spill_ptr,
    entries_ptr,
    items_ptr,
    first_ptr,
    count_ptr,
    edges_ptr,
    q_st,
    q_sh,
    k_st,
    k_sh,
    v_st,
    v_sh,
    g_st,
    g_sh,
    H,
    n_bins,
    segment_size,
    spill_slots,
    first_token,
    first_head,
    scale_log2,
    sm_scale,
    G: gl.constexpr,
    BOXED: gl.constexpr,
    QUERIES: gl.constexpr,
    GATED: gl.constexpr,
):
    """Do what ``backward_kernel`` does. Blocks have 64 keys, D = Dv = 128, and tensors 16 bits.
    ``config.hopper_backward_fits`` says which calls this kernel takes.

    k is [N, H, D] and v [N, H, Dv]. If BOXED, ``q`` [N, HQ, D] and ``g``, the output's gradient
    [N, HQ, Dv], are descriptors (``describe_heads``) of boxes with the heads of a group. Otherwise,
    they are pointers. ``lse_ptr`` (natural), ``rest_ptr`` and, if GATED, ``gate_ptr`` are fp32
    [N, HQ]. ``part_ptr`` takes dQ of each (query, block) in the inputs' dtype, unscaled, [HEADS,
    segment_size, G, D], where HEADS is the number of heads in the launch. The first item of a block
    adds to ``dk_ptr`` and ``dv_ptr`` fp32 [N, HEADS, D]. All further items store their sums in
    ``spill_ptr`` fp32 [slots, 64, D + Dv].
    """
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    COPYING_WARPS: gl.constexpr = 1 if BOXED else 4
    # With cp.async, each thread arrives at the barrier for its own copies; TMA arrives once.
    COPYING: gl.constexpr = 32 * COPYING_WARPS
    dtype: gl.constexpr = part_ptr.dtype.element_ty
    local_h = gl.program_id(1).to(gl.int64)
    h = first_head + local_h
    item = h * gl.num_programs(0) + gl.program_id(0)
    bin_ = gl.load(items_ptr + item * 2)
    if bin_ >= 0:
        start = gl.load(items_ptr + item * 2 + 1)
        n = gl.minimum(gl.load(count_ptr + h * n_bins + bin_) - start, QUERIES)
        begin = gl.load(first_ptr + h * n_bins + bin_) + start
        first_key = gl.load(edges_ptr + bin_ * 2)
        key_end = gl.load(edges_ptr + bin_ * 2 + 1)
        origin = first_key - first_token
        HQ = H * G
        row = first_token.to(gl.int64) * HQ + h * G
        q_row = 0
        g_row = 0
        if BOXED:
            # From here, offsets count heads, not elements.
            q_st = q_st // q_sh
            g_st = g_st // g_sh
            head = (h * G).to(gl.int32)
            q_row = first_token * q_st + head
            g_row = first_token * g_st + head
        else:
            q += first_token.to(gl.int64) * q_st + h * G * q_sh
            g += first_token.to(gl.int64) * g_st + h * G * g_sh
        lse_ptr += row
        rest_ptr += row
        gate_ptr += row
        k_ptr += h * k_sh
        v_ptr += h * v_sh
        entries_ptr += h * segment_size + begin
        part_ptr += (local_h * segment_size + begin) * G * D
        first_row = (first_key.to(gl.int64) * gl.num_programs(1) + local_h) * D
        stride = gl.num_programs(1) * D
        spill_ptr += (local_h * spill_slots + begin // QUERIES) * (ROWS * 2 * D)
        tiles = (n + (ROWS // G - 1)) // (ROWS // G)
        q_room = gl.allocate_shared_memory(dtype, [Q_SLOTS, ROWS, D], SWIZZLED)
        g_room = gl.allocate_shared_memory(dtype, [G_SLOTS, ROWS, D], SWIZZLED)
        k = gl.allocate_shared_memory(dtype, [ROWS, D], SWIZZLED)
        k_turned = gl.allocate_shared_memory(dtype, [ROWS, D], SWIZZLED)
        v = gl.allocate_shared_memory(dtype, [ROWS, D], SWIZZLED)
        ds_rooms = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, ROWS], SWIZZLED)
        line_room = gl.allocate_shared_memory(gl.float32, [Q_SLOTS * LINES, ROWS], FLAT)
        q_ready = gl.allocate_shared_memory(gl.int64, [Q_SLOTS, 1], BARRIER)
        q_empty = gl.allocate_shared_memory(gl.int64, [Q_SLOTS, 1], BARRIER)
        g_ready = gl.allocate_shared_memory(gl.int64, [G_SLOTS, 1], BARRIER)
        g_empty = gl.allocate_shared_memory(gl.int64, [G_SLOTS, 1], BARRIER)
        keys_ready = gl.allocate_shared_memory(gl.int64, [1, 1], BARRIER)
        all_done = gl.allocate_shared_memory(gl.int64, [1, 1], BARRIER)
        sums_given = gl.allocate_shared_memory(gl.int64, [1, 1], BARRIER)
        for slot in gl.static_range(Q_SLOTS):
            mbarrier.init(q_ready.index(slot), count=COPYING + 1 if BOXED else COPYING)
            mbarrier.init(q_empty.index(slot), count=1)
        for slot in gl.static_range(G_SLOTS):
            mbarrier.init(g_ready.index(slot), count=1 if BOXED else COPYING)
            mbarrier.init(g_empty.index(slot), count=1)
        mbarrier.init(keys_ready.index(0), count=GROUPS)
        mbarrier.init(all_done.index(0), count=GROUPS)
        mbarrier.init(sums_given.index(0), count=GROUPS)
        fence_async_shared()
        gl.thread_barrier()
        FIRST: gl.constexpr = 0
        SECOND: gl.constexpr = 1
        # Arguments are written out, since constants in a tuple variable would become tensors.
        # fmt: off
        gl.warp_specialize(
            [
                (differentiate, (
                    FIRST, k_ptr, v_ptr, part_ptr, dk_ptr, dv_ptr, spill_ptr, entries_ptr,
                    k, k_turned, v, q_room, g_room, line_room, ds_rooms,
                    q_ready, q_empty, g_ready, g_empty, keys_ready, all_done, sums_given,
                    k_st, v_st, first_row, stride, start, n, first_key, key_end, origin,
                    scale_log2, sm_scale, G, GATED, BOXED,
                )),
                (differentiate, (
                    SECOND, k_ptr, v_ptr, part_ptr, dk_ptr, dv_ptr, spill_ptr, entries_ptr,
                    k, k_turned, v, q_room, g_room, line_room, ds_rooms,
                    q_ready, q_empty, g_ready, g_empty, keys_ready, all_done, sums_given,
                    k_st, v_st, first_row, stride, start, n, first_key, key_end, origin,
                    scale_log2, sm_scale, G, GATED, BOXED,
                )),
                (copy, (
                    q, g, lse_ptr, rest_ptr, gate_ptr, entries_ptr, q_room, g_room, line_room,
                    q_ready, q_empty, g_ready, g_empty, q_row, q_st, q_sh, g_row, g_st, g_sh,
                    HQ, n, tiles, G, GATED, BOXED,
                )),
            ],
            [4, COPYING_WARPS],
            [240 if BOXED else 232, 24 if BOXED else 40],
        )
        # fmt: on
