"""The kernel of block scores for Hopper, in Gluon.

Compressed keys cover two strides of tokens and begin one stride apart; a block has four strides.
So block j shares 1, 2, 2, 2 and 1 strides with the keys 4j - 1 to 4j + 3.

A tile is the 128 keys from 4b - 1, where b is its first block. The keys are reordered: column
32s + i is key 4(b + i) - 1 + s. So one thread holds all terms of a block's sum, except one: the key
shared with the next block is in the next column. Block 31 has no next column, so it is incomplete.

A piece of work is 64 queries of a key head's group and two adjacent tiles of keys. One warp copies,
by TMA, these keys and the queries of each head into shared memory. Two warp groups each add up the
weights of one tile of keys. While a group computes the weights of a head, the tensor cores compute
the logits of the next head, which may be in the next piece. Each slot (room for a tile) has two
barriers: ``ready`` says that the slot is filled, ``empty`` that it may be filled again.

Logits are in the log2 domain.
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

ROWS = gl.constexpr(64)  # queries in a tile: as many as a block has tokens and a WGMMA has rows
KEYS = gl.constexpr(128)  # keys in a tile
PARTS = gl.constexpr(4)  # parts of a tile, by the place of keys in their blocks
PART = gl.constexpr(32)  # keys in a part
BLOCKS = gl.constexpr(31)  # blocks that a tile of keys completes
GROUPS = gl.constexpr(2)
PAIR = gl.constexpr(62)  # blocks of the two tiles of a piece of work
PANEL = gl.constexpr(64)  # columns of 16 bits in 128 bytes, the width of a copied box
K_SLOTS = gl.constexpr(2)  # slots of a warp group, so that the next keys are copied early
BYTES = gl.constexpr(2)  # bytes of an element, float16 or bfloat16
COPYING_REGISTERS = gl.constexpr(24)


@gluon.jit
def quotient(a, b):
    """Return a // b for numbers from 0 to two million: a float quotient, corrected by up to 1."""
    found = (a.to(gl.float32) / b.to(gl.float32)).to(gl.int32)
    found = gl.where(found * b > a, found - 1, found)
    return gl.where((found + 1) * b <= a, found + 1, found)


@gluon.jit
def piece_of(work, H, works):
    """Return whether piece ``work`` exists, and its query tile, pair of key tiles and key head.

    A pair completes 62 blocks, so the query tiles 62g to 62g + 61 see g + 1 pairs. The last queries
    come first, and consecutive pieces take consecutive key heads.
    """
    left = gl.maximum(works - 1 - work, 0)
    place = quotient(left, H)
    # A place is a (query tile, pair). Places of g begin at 62g(g + 1)/2. The root may be off by 1.
    half = place // PAIR
    g = ((gl.sqrt((8 * half + 1).to(gl.float32)) - 1.0) * 0.5).to(gl.int32)
    g = gl.where((g + 1) * (g + 2) // 2 <= half, g + 1, g)
    g = gl.where(g * (g + 1) // 2 > half, g - 1, g)
    place_in_g = place - PAIR * (g * (g + 1) // 2)
    tile_in_g = quotient(place_in_g, g + 1)
    pair = place_in_g - tile_in_g * (g + 1)
    return work < works, g * PAIR + tile_in_g, pair, left - place * H


@gluon.jit
def seen_of(t, N):
    return gl.minimum(gl.maximum(t - 15, 0) // 16, N)


@gluon.jit
def copy(
    q_box,
    k0_box,
    k1_box,
    k2_box,
    k3_box,
    q_room,
    k_room,
    q_ready,
    q_empty,
    k_ready,
    k_empty,
    H,
    GROUP,
    works,
    D: gl.constexpr,
    Q_SLOTS: gl.constexpr,
):
    PANELS: gl.constexpr = D // PANEL
    parts = k_room._reinterpret(
        k0_box.dtype, [K_SLOTS * GROUPS * PANELS * PARTS, PART, PANEL], k0_box.layout
    )
    count = 0  # how many tiles of queries have been copied
    turn = 0  # how many pieces of work are done
    for work in range(gl.program_id(0), works, gl.num_programs(0)):
        _there, tile, pair, head = piece_of(work, H, works)
        for group in gl.static_range(GROUPS):
            slot = turn % K_SLOTS * GROUPS + group
            ready = k_ready.index(slot)
            b = (GROUPS * pair + group) * BLOCKS
            mbarrier.wait(k_empty.index(slot), (turn // K_SLOTS & 1) ^ 1)
            mbarrier.expect(ready, KEYS * D * BYTES)
            for panel in gl.static_range(PANELS):
                column = head * D + panel * PANEL
                part = (slot * PANELS + panel) * PARTS
                # The parts begin with keys 4b - 1, 4b, 4b + 1 and 4b + 2. Key -1 is read as zeros.
                tma.async_copy_global_to_shared(k3_box, [b - 1, column], ready, parts.index(part))
                tma.async_copy_global_to_shared(k0_box, [b, column], ready, parts.index(part + 1))
                tma.async_copy_global_to_shared(k1_box, [b, column], ready, parts.index(part + 2))
                tma.async_copy_global_to_shared(k2_box, [b, column], ready, parts.index(part + 3))
        for i in range(GROUP):
            slot = count % Q_SLOTS
            at = [tile * ROWS, (head * GROUP + i) * D]
            mbarrier.wait(q_empty.index(slot), (count // Q_SLOTS & 1) ^ 1)
            mbarrier.expect(q_ready.index(slot), ROWS * D * BYTES)
            tma.async_copy_global_to_shared(q_box, at, q_ready.index(slot), q_room.index(slot))
            count += 1
        turn += 1


@gluon.jit
def next_column(z):
    """Return z[:, i + 1] for z int32 [64, 32] in the layout of an accumulator; i = 31 is undefined.

    Thread c of four holds the columns 8i + 2c and 8i + 2c + 1 of a row. The column after the first
    is the thread's own second column. The column after the second is the first column of thread
    c + 1. For the last thread, it is the first column of thread 0, 8 columns further.
    """
    return gl.inline_asm_elementwise(
        """
        {
        .reg .pred p;
        .reg .b32 c, s, t<8>, o<8>;
        mov.u32 s, %laneid;
        and.b32 c, s, 3;
        setp.eq.u32 p, c, 0;
        add.u32 c, c, 1;
        and.b32 c, c, 3;
        and.b32 s, s, 28;
        or.b32 s, s, c;
        selp.b32 t0, $20, $16, p;
        selp.b32 t1, $22, $18, p;
        selp.b32 t2, $24, $20, p;
        selp.b32 t3, $26, $22, p;
        selp.b32 t4, $28, $24, p;
        selp.b32 t5, $30, $26, p;
        mov.b32 t6, $28;
        mov.b32 t7, $30;
        shfl.sync.idx.b32 o0, t0, s, 31, -1;
        shfl.sync.idx.b32 o1, t1, s, 31, -1;
        shfl.sync.idx.b32 o2, t2, s, 31, -1;
        shfl.sync.idx.b32 o3, t3, s, 31, -1;
        shfl.sync.idx.b32 o4, t4, s, 31, -1;
        shfl.sync.idx.b32 o5, t5, s, 31, -1;
        shfl.sync.idx.b32 o6, t6, s, 31, -1;
        shfl.sync.idx.b32 o7, t7, s, 31, -1;
        mov.b32 $0, $17;
        mov.b32 $1, o0;
        mov.b32 $2, $19;
        mov.b32 $3, o1;
        mov.b32 $4, $21;
        mov.b32 $5, o2;
        mov.b32 $6, $23;
        mov.b32 $7, o3;
        mov.b32 $8, $25;
        mov.b32 $9, o4;
        mov.b32 $10, $27;
        mov.b32 $11, o5;
        mov.b32 $12, $29;
        mov.b32 $13, o6;
        mov.b32 $14, $31;
        mov.b32 $15, o7;
        }
        """,
        "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,"
        "r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r",
        [z],
        dtype=gl.int32,
        is_pure=False,  # threads exchange numbers, so all must execute it
        pack=16,
    )


@gluon.jit
def store(acc, scores_ptr, tile, head, b, T, N, H, n_blocks, S_LAYOUT: gl.constexpr):
    """Compute the scores of blocks b to b + 30 from the weights of their keys [64, 128]. Store a
    score if the block begins at or before the query."""
    # The layout of an accumulator of 32 columns, and a layout to store whole rows.
    PART_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART, 16])
    ROW_LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    first = tile * ROWS
    if (b == 0) | (PARTS * b + (KEYS - 1) > seen_of(first, N)):
        t = first + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        n = gl.arange(0, KEYS, gl.SliceLayout(0, S_LAYOUT))
        key = PARTS * (b + n % PART) - 1 + n // PART
        key = gl.where(key < 0, N, key)  # there is no key before the first
        acc = gl.where(key[None, :] < seen_of(t, N)[:, None], acc, 0.0)
    even, odd = acc.reshape([ROWS, 2, 2, PART]).permute((0, 3, 1, 2)).split()
    before, x2 = even.split()
    x1, x3 = odd.split()
    before = gl.convert_layout(before, PART_LAYOUT, assert_trivial=True)
    inner = gl.convert_layout(x1 + x2 + x3, PART_LAYOUT, assert_trivial=True)
    behind = next_column(before.to(gl.int32, bitcast=True)).to(gl.float32, bitcast=True)
    out = gl.convert_layout(2.0 * inner + (before + behind), ROW_LAYOUT)
    row = gl.arange(0, ROWS, gl.SliceLayout(1, ROW_LAYOUT))
    j = gl.arange(0, PART, gl.SliceLayout(0, ROW_LAYOUT))
    mask = (first + row < T)[:, None] & ((j < BLOCKS) & (b + j <= tile))[None, :]
    to = scores_ptr + (first.to(gl.int64) * H + head) * n_blocks + b
    gl.store(to + row[:, None] * (H * n_blocks) + j[None, :], out, mask=mask)


@gluon.jit
def lses_of(lse_ptr, tile, head, T, LAYOUT: gl.constexpr):
    """Return the addresses of the LSEs of a tile of queries and a head.

    Rows after the last query get the address of the last LSE, since their scores are not stored.
    """
    t = gl.minimum(tile * ROWS + gl.arange(0, ROWS, LAYOUT), T - 1)
    return lse_ptr + head.to(gl.int64) * T + t


@gluon.jit
def base_2(lse_ptr):
    return gl.load(lse_ptr) * 1.4426950408889634


@gluon.jit
def weights(s, scale_log2, lse):
    return gl.exp2(s * scale_log2 - lse[:, None])


@gluon.jit
def score(
    WHO: gl.constexpr,
    lse_ptr,
    scores_ptr,
    q_room,
    k_room,
    q_ready,
    q_empty,
    k_ready,
    k_empty,
    T,
    N,
    H,
    GROUP,
    n_blocks,
    works,
    scale_log2,
    D: gl.constexpr,
    Q_SLOTS: gl.constexpr,
):
    """Do the work of warp group ``WHO``: the scores of one tile of keys in each piece. The group is
    ``active`` in pieces whose queries see blocks of its tile; group 0 is active in all pieces. Each
    iteration takes two heads, so that no logits are moved between registers."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    S_ROWS: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    zero = gl.full([ROWS, KEYS], 0.0, gl.float32, S_LAYOUT)
    count = 0  # how many tiles of queries came before this piece
    turn = 0
    there, tile, pair, head = piece_of(gl.program_id(0), H, works)
    active = there & ((GROUPS * pair + WHO) * BLOCKS <= tile)
    lse_a = base_2(lses_of(lse_ptr, tile, head * GROUP, T, S_ROWS))
    # Start the logits of the first head. For later pieces, the piece before starts them.
    mbarrier.wait(k_ready.index(WHO), 0, pred=active)
    mbarrier.wait(q_ready.index(0), 0, pred=active)
    k = k_room.index(WHO).permute((1, 0))
    sa = warpgroup_mma(q_room.index(0), k, zero, use_acc=False, is_async=True)
    sa = warpgroup_mma_wait(0, deps=[sa])
    mbarrier.arrive(q_empty.index(0), count=1, pred=active)
    for work in range(gl.program_id(0), works, gl.num_programs(0)):
        k_slot = turn % K_SLOTS * GROUPS + WHO
        next_k_slot = (turn + 1) % K_SLOTS * GROUPS + WHO
        next_k_parity = (turn + 1) // K_SLOTS & 1
        next_count = count + GROUP
        next_slot = next_count % Q_SLOTS
        next_parity = next_count // Q_SLOTS & 1
        if active:
            k = k_room.index(k_slot).permute((1, 0))
            lses = lses_of(lse_ptr, tile, head * GROUP, T, S_ROWS)
            acc = gl.full([ROWS, KEYS], 0.0, gl.float32, S_LAYOUT)
            for i in range(1, GROUP - 1, 2):
                c = count + i
                slot = c % Q_SLOTS
                mbarrier.wait(q_ready.index(slot), c // Q_SLOTS & 1)
                sb = warpgroup_mma(q_room.index(slot), k, zero, use_acc=False, is_async=True)
                lse_b = base_2(lses + i * T)
                acc += weights(sa, scale_log2, lse_a)
                # This wait returns at once, but it ends a basic block: otherwise ptxas may move the
                # weights below the wait for the logits.
                mbarrier.wait(q_ready.index(slot), c // Q_SLOTS & 1)
                sb = warpgroup_mma_wait(0, deps=[sb])
                mbarrier.arrive(q_empty.index(slot), count=1)
                c += 1
                slot = c % Q_SLOTS
                mbarrier.wait(q_ready.index(slot), c // Q_SLOTS & 1)
                sa = warpgroup_mma(q_room.index(slot), k, zero, use_acc=False, is_async=True)
                lse_a = base_2(lses + (i + 1) * T)
                acc += weights(sb, scale_log2, lse_b)
                mbarrier.wait(q_ready.index(slot), c // Q_SLOTS & 1)
                sa = warpgroup_mma_wait(0, deps=[sa])
                mbarrier.arrive(q_empty.index(slot), count=1)
            c = count + GROUP - 1
            slot = c % Q_SLOTS
            mbarrier.wait(q_ready.index(slot), c // Q_SLOTS & 1)
            sb = warpgroup_mma(q_room.index(slot), k, zero, use_acc=False, is_async=True)
            lse_b = base_2(lses + (GROUP - 1) * T)
            there, next_tile, next_pair, next_head = piece_of(work + gl.num_programs(0), H, works)
            next_active = there & ((GROUPS * next_pair + WHO) * BLOCKS <= next_tile)
            next_lse = base_2(lses_of(lse_ptr, next_tile, next_head * GROUP, T, S_ROWS))
            acc += weights(sa, scale_log2, lse_a)
            mbarrier.wait(q_ready.index(slot), c // Q_SLOTS & 1)
            sb = warpgroup_mma_wait(0, deps=[sb])
            mbarrier.arrive(q_empty.index(slot), count=1)
            mbarrier.arrive(k_empty.index(k_slot), count=1)
            # Start the first logits of the next piece, which an inactive group does not use.
            mbarrier.wait(k_ready.index(next_k_slot), next_k_parity, pred=next_active)
            mbarrier.wait(q_ready.index(next_slot), next_parity, pred=next_active)
            k = k_room.index(next_k_slot).permute((1, 0))
            sa = warpgroup_mma(q_room.index(next_slot), k, zero, use_acc=False, is_async=True)
            acc += weights(sb, scale_log2, lse_b)
            b = (GROUPS * pair + WHO) * BLOCKS
            store(acc, scores_ptr, tile, head, b, T, N, H, n_blocks, S_LAYOUT)
            mbarrier.wait(q_ready.index(next_slot), next_parity, pred=next_active)
            sa = warpgroup_mma_wait(0, deps=[sa])
        else:
            there, next_tile, next_pair, next_head = piece_of(work + gl.num_programs(0), H, works)
            next_active = there & ((GROUPS * next_pair + WHO) * BLOCKS <= next_tile)
            next_lse = base_2(lses_of(lse_ptr, next_tile, next_head * GROUP, T, S_ROWS))
            # Wait also for slots that are not read: a slot must be filled before its release.
            for c in range(count, next_count):
                mbarrier.wait(q_ready.index(c % Q_SLOTS), c // Q_SLOTS & 1)
                mbarrier.arrive(q_empty.index(c % Q_SLOTS), count=1)
            mbarrier.wait(k_ready.index(k_slot), turn // K_SLOTS & 1)
            mbarrier.arrive(k_empty.index(k_slot), count=1)
            mbarrier.wait(k_ready.index(next_k_slot), next_k_parity, pred=next_active)
            mbarrier.wait(q_ready.index(next_slot), next_parity, pred=next_active)
            k = k_room.index(next_k_slot).permute((1, 0))
            sa = warpgroup_mma(q_room.index(next_slot), k, zero, use_acc=False, is_async=True)
            sa = warpgroup_mma_wait(0, deps=[sa])
        mbarrier.arrive(q_empty.index(next_slot), count=1, pred=next_active)
        lse_a = next_lse
        tile = next_tile
        pair = next_pair
        head = next_head
        active = next_active
        count = next_count
        turn += 1


# T is specialised: if 16 divides it, a store compares fewer rows with T. That saves registers, and
# ptxas overlaps weights and logits better. H must not be specialised, because an H of 1 would
# become a constant.
@gluon.jit(do_not_specialize=["N", "H", "GROUP", "n_blocks", "works"])
def block_scores_hopper_kernel(
    q_box,
    k0_box,
    k1_box,
    k2_box,
    k3_box,
    lse_ptr,
    scores_ptr,
    T,
    N,
    H,
    GROUP,
    n_blocks,
    works,
    scale_log2,
    D: gl.constexpr,
    Q_SLOTS: gl.constexpr,
    REGISTERS: gl.constexpr,
):
    """Program i of n takes the pieces of work i, i + n, ... of one batch entry.

    A piece is 64 queries of a key head's group, and 62 blocks. GROUP is even. ``q_box`` describes q
    [T, HQ*D] for TMA. The boxes k0 to k3 each describe every fourth key, [ceil(N/4), H*D], from
    key 0, 1, 2 and 3. lse is [HQ, T], natural; scores are [T, H, n_blocks].
    """
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    dtype: gl.constexpr = q_box.dtype
    q_room = gl.allocate_shared_memory(dtype, [Q_SLOTS, ROWS, D], q_box.layout)
    k_room = gl.allocate_shared_memory(dtype, [K_SLOTS * GROUPS, KEYS, D], q_box.layout)
    q_ready = gl.allocate_shared_memory(gl.int64, [Q_SLOTS, 1], BARRIER)
    q_empty = gl.allocate_shared_memory(gl.int64, [Q_SLOTS, 1], BARRIER)
    k_ready = gl.allocate_shared_memory(gl.int64, [K_SLOTS * GROUPS, 1], BARRIER)
    k_empty = gl.allocate_shared_memory(gl.int64, [K_SLOTS * GROUPS, 1], BARRIER)
    for i in gl.static_range(Q_SLOTS):
        mbarrier.init(q_ready.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=GROUPS)
    for i in gl.static_range(K_SLOTS * GROUPS):
        mbarrier.init(k_ready.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=1)
    fence_async_shared()
    FIRST: gl.constexpr = 0
    SECOND: gl.constexpr = 1
    # Arguments are written out, since constants in a tuple variable would become tensors.
    # fmt: off
    gl.warp_specialize(
        [
            (score, (
                FIRST, lse_ptr, scores_ptr, q_room, k_room, q_ready, q_empty, k_ready, k_empty,
                T, N, H, GROUP, n_blocks, works, scale_log2, D, Q_SLOTS,
            )),
            (score, (
                SECOND, lse_ptr, scores_ptr, q_room, k_room, q_ready, q_empty, k_ready, k_empty,
                T, N, H, GROUP, n_blocks, works, scale_log2, D, Q_SLOTS,
            )),
            (copy, (
                q_box, k0_box, k1_box, k2_box, k3_box, q_room, k_room, q_ready, q_empty, k_ready,
                k_empty, H, GROUP, works, D, Q_SLOTS,
            )),
        ],
        [4, 1],
        [REGISTERS, COPYING_REGISTERS],
    )
    # fmt: on
