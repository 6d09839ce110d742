"""The kernel of the compression branch for one token, which can also store the logits."""

from __future__ import annotations

from ....jit.compat import dot, start_next_launch, tl, triton
from ....jit.merge import NOT_THERE
from ....jit.sequences import complete_keys
from ....jit.tiles import late, load_tile, softmax_update, store_share


@triton.jit
def decode_compressed_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    sums_ptr,
    part_ptr,
    plse_ptr,
    lengths_ptr,
    q_sn,
    q_sh,
    k_sn,
    k_sl,
    v_sn,
    v_sl,
    H,
    L,
    n_blocks,
    chunk,
    rows_each,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_L: tl.constexpr,
    LATE: tl.constexpr,
    SUMS: tl.constexpr,
    LENGTHS: tl.constexpr,
    REACH: tl.constexpr,
    SPAN: tl.constexpr,
    PLACES: tl.constexpr,
    STRIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (row, share of its keys, head tile): attend to ``chunk`` keys from ``share * chunk``.

    If SUMS, also store the log2 of the weights exp2(logit), summed over blocks of SPAN keys: fp32
    [rows, n_blocks, SUMS, H]. A key covers REACH strides. It counts in its own block and in up to
    SUMS - 1 later ones, by the strides that it shares with each. A tile holds whole blocks, padded
    to PLACES keys. If LENGTHS, each batch entry has its own number of tokens and ``rows_each``
    rows, which see the keys that end within these tokens. Then ``chunk`` is computed here.
    """
    start_next_launch(PDL)
    n = tl.program_id(0).to(tl.int64)
    share = tl.program_id(1)
    head0 = tl.program_id(2) * BLOCK_H
    heads = head0 + tl.arange(0, BLOCK_H)
    heads_ok = heads < H
    TILE: tl.constexpr = BLOCK_L // PLACES * SPAN
    if LENGTHS:
        L = complete_keys(tl.load(lengths_ptr + n // rows_each), L, REACH * STRIDE, STRIDE)
        chunk = tl.maximum(tl.cdiv(tl.cdiv(L, TILE), tl.num_programs(1)), 1) * TILE
    lo = share * chunk
    hi = tl.minimum(lo + chunk, L)
    row_max = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
    sums = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_DV], dtype=tl.float32)
    q = load_tile(q_ptr + n * q_sn, heads.to(tl.int64), q_sh, heads_ok, D, BLOCK_D, True)
    place = tl.arange(0, BLOCK_L) % PLACES
    for start in range(lo, hi, TILE):
        pos = start + tl.arange(0, BLOCK_L) // PLACES * SPAN + place
        valid = (pos < hi) & (place < SPAN)
        offset = pos.to(tl.int64)
        k = load_tile(k_ptr + n * k_sn, offset, k_sl, valid, D, BLOCK_D, True)
        v = load_tile(v_ptr + n * v_sn, offset, v_sl, valid, DV, BLOCK_DV, True)
        s = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
        s = dot(late(q, start >= lo, LATE), tl.trans(k), s) * scale_log2
        s = tl.where(valid[None, :], s, float("-inf"))
        row_max, sums, acc = softmax_update(s, v, row_max, sums, acc)
        for LATER in tl.static_range(SUMS):
            # The compiler takes these weights from ``softmax_update``.
            weight = tl.exp2(s - row_max[:, None])
            shared = tl.minimum(place + REACH, (LATER + 1) * SPAN)
            shared -= tl.maximum(place, LATER * SPAN)
            weight *= tl.maximum(shared, 0)[None, :]
            weight = tl.reshape(weight, [BLOCK_H, BLOCK_L // PLACES, PLACES])
            of_block = row_max[:, None] + tl.log2(tl.sum(weight, 2))
            block = start // SPAN + LATER + tl.arange(0, BLOCK_L // PLACES)
            line = sums_ptr + ((n * n_blocks + block) * SUMS + LATER) * H
            there = heads_ok[:, None] & (block < n_blocks)[None, :]
            tl.store(line[None, :] + heads[:, None], of_block, mask=there)
    row_sum = tl.sum(sums, 1)
    # A share without keys is 0 and has no weight.
    row_sum = tl.where(lo < hi, row_sum, 1.0)
    row_max = tl.maximum(row_max, NOT_THERE)
    slot = n * tl.num_programs(1) + share
    store_share(part_ptr, plse_ptr, slot, acc, row_max, row_sum, head0, H, DV)
