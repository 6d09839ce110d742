"""The kernel of the two branches of one token that read its cache: selection and window."""

from __future__ import annotations

from ....jit.compat import dot, start_next_launch, tl, triton, wait_for_last_launch
from ....jit.merge import NOT_THERE
from ....jit.sequences import complete_keys, tokens_of
from ....jit.tiles import late, load_tile, softmax_update, store_share
from ....scoring.kernels.top_n import slots_of
from .scores import scores_of_sums


@triton.jit
def decode_spans_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    chosen_ptr,
    sums_ptr,
    lse_ptr,
    part_ptr,
    plse_ptr,
    lengths_ptr,
    pages_ptr,
    q_sb,
    q_sh,
    k_sb,
    k_sg,
    k_sl,
    v_sb,
    v_sg,
    v_sl,
    p_sb,
    G,
    H,
    tokens,
    n_pages,
    window,
    near_shares,
    chunk,
    N,
    n_blocks,
    n_shares,
    scale_log2,
    COUNT: tl.constexpr,
    SIZE: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_L: tl.constexpr,
    LATE: tl.constexpr,
    LENGTHS: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCKS: tl.constexpr,
    REACH: tl.constexpr,
    SPAN: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_S: tl.constexpr,
    LOCAL: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (row b * G + g, share, head tile): attend to ``chunk`` keys of a branch.

    The first ``near_shares`` shares are of the window, and do not wait for the launch before. The
    rest is of the blocks in ``chosen``. If BLOCKS is not 0, these programs choose among at most
    BLOCKS blocks. If LENGTHS, each batch entry has its own number of tokens. If PAGE is 0, k is
    [B,G,tokens,D]. Otherwise, k [pages,G,PAGE,D] and v are a pool of pages, listed in ``pages``.
    """
    start_next_launch(PDL)
    n = tl.program_id(0).to(tl.int64)
    share = tl.program_id(1)
    b = n // G
    g = n % G
    if LENGTHS:
        tokens = tokens_of(lengths_ptr, b, tokens)
    head0 = tl.program_id(2) * BLOCK_H
    heads = head0 + tl.arange(0, BLOCK_H)
    heads_ok = heads < H
    q_heads = q_ptr + b * q_sb + g * H * q_sh
    q = load_tile(q_heads, heads.to(tl.int64), q_sh, heads_ok, D, BLOCK_D, True)
    is_chosen = share >= near_shares
    ids = tl.arange(0, BLOCKS if BLOCKS > 0 else 1)
    slot_of = ids
    # Keys are numbered through the chosen blocks, or as in the cache.
    end = tl.where(is_chosen, tl.minimum(tl.cdiv(tokens, SIZE), COUNT) * SIZE, tokens)
    lo = tl.where(is_chosen, 0, tl.maximum(tokens - window, 0))
    lo += tl.where(is_chosen, share - near_shares, share) * chunk
    keys = N
    if LENGTHS:
        keys = complete_keys(tokens, N, REACH * (SIZE // SPAN), SIZE // SPAN)
    if is_chosen:
        wait_for_last_launch(PDL)
        if BLOCKS > 0:
            score = scores_of_sums(
                sums_ptr, lse_ptr, n, ids, keys, H, n_blocks, n_shares, SPAN, SUMS, BLOCK_C, BLOCK_S
            )
            slot_of = slots_of(score, ids, tl.cdiv(tokens, SIZE), LOCAL)
    hi = tl.minimum(lo + chunk, end)
    k_base = k_ptr + g * k_sg
    v_base = v_ptr + g * v_sg
    if PAGE == 0:
        k_base += b * k_sb
        v_base += b * v_sb
    row_max = tl.full([BLOCK_H], NOT_THERE, dtype=tl.float32)
    sums = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_DV], dtype=tl.float32)
    for start in range(lo, hi, BLOCK_L):
        number = start + tl.arange(0, BLOCK_L)
        valid = number < hi
        key = number
        if SIZE % BLOCK_L == 0:
            if is_chosen:
                slot = start // SIZE
                if BLOCKS > 0:
                    block = tl.sum(tl.where(slot_of == slot, ids, 0), 0)
                else:
                    block = tl.load(chosen_ptr + n * COUNT + slot)
                key += (block - slot) * SIZE
        else:
            block = number // SIZE
            chosen = tl.load(chosen_ptr + n * COUNT + block, mask=valid & is_chosen, other=0)
            key += tl.where(is_chosen, chosen - block, 0) * SIZE
        there = valid & (key < tokens)
        offset = key.to(tl.int64)
        if PAGE > 0:
            page = tl.load(pages_ptr + b * p_sb + key // PAGE, mask=there, other=-1)
            there = there & (page >= 0) & (page < n_pages)
            offset = (key % PAGE).to(tl.int64)
            page = page.to(tl.int64)
            k_page = k_base + (page * k_sb)[:, None]
            v_page = v_base + (page * v_sb)[:, None]
            k = load_tile(k_page, offset, k_sl, there, D, BLOCK_D, True)
            v = load_tile(v_page, offset, v_sl, there, DV, BLOCK_DV, True)
        else:
            k = load_tile(k_base, offset, k_sl, there, D, BLOCK_D, True)
            v = load_tile(v_base, offset, v_sl, there, DV, BLOCK_DV, True)
        logits = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
        logits = dot(late(q, start >= lo, LATE), tl.trans(k), logits) * scale_log2
        logits = tl.where(there[None, :], logits, NOT_THERE)
        row_max, sums, acc = softmax_update(logits, v, row_max, sums, acc)
    row_sum = tl.sum(sums, 1)
    row_sum = tl.where(row_sum > 0, row_sum, 1.0)
    slot = n * tl.num_programs(1) + share
    store_share(part_ptr, plse_ptr, slot, acc, row_max, row_sum, head0, H, DV)
