"""The main kernel of the block-major forward in Gluon, for Hopper (see `forward.py`).

The kernel in Triton loads a tile of q and waits for it. Here, once the scores of a tile are
computed, the next tile is copied into the same shared memory, during the softmax and the product
with V. So each of four programs on a multiprocessor has one tile in flight. With more tiles in
flight, fewer programs would fit, which is slower.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .plan import CHUNK_AND_HEAD, LISTS

ROWS = gl.constexpr(64)
"""Rows (query, head) of a tile, and keys of a block: as many as a ``wgmma`` of four warps takes."""
SWIZZLED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
"""The layout of tiles that ``wgmma`` reads: rows of 64 columns, 128 bytes."""
COPIES = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
"""The layout of loads of a [64, 64] tile, 16 bytes for each thread."""
SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
"""The layout of rows by keys in a result of ``wgmma``."""


@gluon.constexpr_function
def neighbours(N):
    """Return the layout in which each thread has eight adjacent columns of a ``wgmma`` product [64,
    N] after ``in_turn``."""
    wide = [[0, 32], [0, 64]] if N == 128 else [[0, 32]]
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [8, 0], *wide],
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, N],
    )


@gluon.jit
def in_turn(x, N: gl.constexpr):
    """Swap the axes j and k, both of size 4, of the columns (i, j, k, 2) of ``x`` [64, N]."""
    x = x.reshape([64, N // 32, 4, 4, 2]).permute((0, 1, 3, 2, 4))
    return x.reshape([64, N])


@gluon.jit
def block_rows(ptr, key, key_end, stride, N: gl.constexpr):
    """Load 64 rows of K or V [64, N] from row ``key``. Rows from ``key_end`` are 0."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // N, N // 8], [4, 1], [1, 0])
    key = key + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, N, gl.SliceLayout(0, LAYOUT))
    at = key.to(gl.int64)[:, None] * stride + column[None, :]
    return gl.load(ptr + at, mask=(key < key_end)[:, None], other=0.0)


@gluon.jit
def tile_tokens(entries_ptr, first, n, G: gl.constexpr, WIDE: gl.constexpr):
    """Return the token of each row of the tile that begins at query ``first``.

    Rows from query ``n`` get the first token of the chunk. Tokens are loaded one tile before
    ``copy_tile`` takes them.
    """
    query = first + gl.arange(0, ROWS, gl.SliceLayout(1, COPIES)) // G
    token = gl.load(entries_ptr + query, mask=query < n, other=0)
    if WIDE:
        token = token.to(gl.int64)
    return token


@gluon.jit
def copy_tile(q_ptr, token, q_st, q_sh, tile, G: gl.constexpr, D: gl.constexpr):
    """Start to copy rows (``token``, head) of q to ``tile`` [D // 64, 64, 64]."""
    head = gl.arange(0, ROWS, gl.SliceLayout(1, COPIES)) % G
    column = gl.arange(0, 64, gl.SliceLayout(0, COPIES))
    at = (token * q_st + head.to(token.dtype) * q_sh)[:, None] + column[None, :]
    for part in gl.static_range(D // 64):
        async_copy.async_copy_global_to_shared(tile.index(part), q_ptr + part * 64 + at)


@gluon.jit
def tile_scores(tile, k, D: gl.constexpr):
    """Return q.k, fp32 [64, 64], of two tiles [D // 64, 64, 64]."""
    s = gl.zeros([ROWS, ROWS], gl.float32, SCORES)
    for part in gl.static_range(D // 64):
        transposed = k.index(part).permute((1, 0))
        s = warpgroup_mma(tile.index(part), transposed, s, use_acc=part > 0, is_async=True)
    return warpgroup_mma_wait(0, deps=[s])


@gluon.jit(do_not_specialize=CHUNK_AND_HEAD, **LISTS)
def hopper_forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    part_ptr,
    plse_ptr,
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
    n_bins,
    segment_size,
    first_token,
    first_head,
    scale_log2,
    G: gl.constexpr,
    D: gl.constexpr,
    DV: gl.constexpr,
    QUERIES: gl.constexpr,
    WIDE: gl.constexpr,
):
    """Do what ``forward_kernel`` does, with programs of four warps. Blocks have 64 keys.

    ``config.hopper_fits`` says which calls this kernel takes.
    """
    TOKENS: gl.constexpr = ROWS // G
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DV, 16])
    OUT: gl.constexpr = neighbours(DV)
    dtype: gl.constexpr = q_ptr.dtype.element_ty
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
        entries_ptr += h * segment_size + begin
        plse_ptr += (local_h * segment_size + begin) * G
        part_ptr += (local_h * segment_size + begin) * G * DV
        q_ptr += first_token.to(gl.int64) * q_st + h * G * q_sh
        k_ptr += h * k_sh
        k0 = block_rows(k_ptr, first_key, key_end, k_st, 64)
        k1 = k0
        if D == 128:
            k1 = block_rows(k_ptr + 64, first_key, key_end, k_st, 64)
        v_rows = block_rows(v_ptr + h * v_sh, first_key, key_end, v_st, DV)
        tile = gl.allocate_shared_memory(dtype, [D // 64, ROWS, 64], SWIZZLED)
        k = gl.allocate_shared_memory(dtype, [D // 64, ROWS, 64], SWIZZLED)
        v = gl.allocate_shared_memory(dtype, [ROWS, DV], SWIZZLED)
        copy_tile(q_ptr, tile_tokens(entries_ptr, 0, n, G, WIDE), q_st, q_sh, tile, G, D)
        async_copy.commit_group()
        coming = tile_tokens(entries_ptr, TOKENS, n, G, WIDE)
        k.index(0).store(k0)
        if D == 128:
            k.index(1).store(k1)
        # V is reordered, so that a thread has adjacent columns of the product. The thread stores 16
        # bytes at once, without a detour through shared memory.
        v.store(in_turn(v_rows, DV))
        last_key = first_key + (ROWS - 1) - first_token
        next_first = gl.load(entries_ptr)
        row = gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
        key = first_key + gl.arange(0, ROWS, gl.SliceLayout(0, SCORES))
        out_row = gl.arange(0, ROWS, gl.SliceLayout(1, OUT))
        out_column = gl.arange(0, DV, gl.SliceLayout(0, OUT))
        for i in range(0, n, TOKENS):
            # Tokens ascend, so a tile needs a mask only if its first token is before the block's
            # last key. The mask also hides keys past the end of the sequence.
            on_diagonal = next_first < last_key
            next_first = gl.load(entries_ptr + gl.minimum(i + TOKENS, n - 1))
            async_copy.wait_group(0)
            fence_async_shared()
            gl.thread_barrier()
            s = tile_scores(tile, k, D)
            # Wait until all warps have read the tile.
            gl.thread_barrier()
            if i + TOKENS < n:
                copy_tile(q_ptr, coming, q_st, q_sh, tile, G, D)
            async_copy.commit_group()
            coming = tile_tokens(entries_ptr, i + 2 * TOKENS, n, G, WIDE)
            if on_diagonal:
                query = i + row // G
                t = first_token + gl.load(entries_ptr + query, mask=query < n, other=0)
                s = gl.where(key[None, :] <= t[:, None], s, float("-inf"))
            top = gl.max(s, 1) * scale_log2
            p = gl.exp2(s * scale_log2 - top[:, None])
            total = gl.sum(p, 1)
            weights = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, ACC, 2))
            zeros = gl.zeros([ROWS, DV], gl.float32, ACC)
            acc = warpgroup_mma(weights, v, zeros, use_acc=False, is_async=True)
            acc, weights = warpgroup_mma_wait(0, deps=[acc, weights])
            acc = acc * gl.convert_layout(1.0 / total, gl.SliceLayout(1, ACC))[:, None]
            out = gl.convert_layout(in_turn(acc.to(dtype), DV), OUT)
            left = (n - i) * G
            # Only the merge kernel reads the partial results, so they should not evict q from L2.
            gl.store(
                part_ptr + (i * G + out_row)[:, None] * DV + out_column[None, :],
                out,
                mask=(out_row < left)[:, None],
                eviction_policy="evict_first",
            )
            gl.store(plse_ptr + i * G + row, top + gl.log2(total), mask=row < left)
