"""Kernels of the block-major forward. `selection/blocks/plan.py` explains bins, items, entries."""

from __future__ import annotations

from ....jit.compat import dot, narrow, tl, triton
from ....jit.tiles import load_tile, log_sum_exp, normalised
from .plan import CHUNK_AND_HEAD, LISTS, UNROLLED


@triton.jit
def on_diagonal(entries_ptr, n, first_token, last_key, BLOCK_SIZE: tl.constexpr):
    """Return how many of ``n`` ascending tokens are before a block's last key."""
    # These are among the first BLOCK_SIZE tokens, since tokens ascend from the block's first key.
    offset = tl.arange(0, BLOCK_SIZE)
    token = tl.load(entries_ptr + offset, mask=offset < n, other=0)
    return tl.sum(((offset < n) & (first_token + token < last_key)).to(tl.int32), 0)


@triton.jit(do_not_specialize=CHUNK_AND_HEAD, **LISTS)
def forward_kernel(
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
    G: tl.constexpr,
    PAD_G: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Program (work item, head): store partial outputs and log2 LSEs of its queries over its block.

    If AHEAD, the token numbers of a tile are loaded during the work on the tile before.
    """
    local_h = tl.program_id(1).to(tl.int64)
    h = first_head + local_h
    item = h * tl.num_programs(0) + tl.program_id(0)
    bin_ = tl.load(items_ptr + item * 2)
    if bin_ >= 0:
        start = tl.load(items_ptr + item * 2 + 1)
        n = tl.minimum(tl.load(count_ptr + h * n_bins + bin_) - start, QUERIES)
        begin = tl.load(first_ptr + h * n_bins + bin_) + start
        entries_ptr += h * segment_size + begin
        plse_ptr += (local_h * segment_size + begin) * G
        part_ptr += (local_h * segment_size + begin) * G * DV
        q_ptr += h * G * q_sh
        key = tl.load(edges_ptr + bin_ * 2) + tl.arange(0, BLOCK_SIZE)
        held = key < tl.load(edges_ptr + bin_ * 2 + 1)
        last_key = tl.load(edges_ptr + bin_ * 2) + BLOCK_SIZE - 1
        dv = tl.arange(0, BLOCK_DV)
        offset = key.to(tl.int64)
        k = load_tile(k_ptr + h * k_sh, offset, k_st, held, D, BLOCK_D, True)
        v = load_tile(v_ptr + h * v_sh, offset, v_st, held, DV, BLOCK_DV, True)
        diagonal = on_diagonal(entries_ptr, n, first_token, last_key, BLOCK_SIZE)
        # A tile has ROWS // PAD_G queries, with a row for each head.
        rows = tl.arange(0, ROWS)
        head = rows % PAD_G
        if AHEAD:
            next_t = first_token + tl.load(
                entries_ptr + rows // PAD_G, mask=rows // PAD_G < n, other=0
            )
        for i in range(0, n, ROWS // PAD_G):
            query = i + rows // PAD_G
            real = query < n
            if PAD_G != G:
                real = real & (head < G)
            if AHEAD:
                t = next_t
                after = query + ROWS // PAD_G
                next_t = first_token + tl.load(entries_ptr + after, mask=after < n, other=0)
            else:
                t = first_token + tl.load(entries_ptr + query, mask=real, other=0)
            # These kernels are short of registers, and 64-bit offsets would take twice as many.
            token = t
            if WIDE:
                token = t.to(tl.int64)
            q_row = token * q_st + head.to(token.dtype) * q_sh
            q = load_tile(q_ptr, q_row, 1, real, D, BLOCK_D, True)
            s = tl.zeros([ROWS, BLOCK_SIZE], dtype=tl.float32)
            s = dot(q, tl.trans(k), s)
            # The mask also hides keys past the end of the sequence: they are after all queries.
            if i < diagonal:
                s = tl.where(key[None, :] <= t[:, None], s, float("-inf"))
            top = tl.max(s, 1) * scale_log2
            p = tl.exp2(s * scale_log2 - top[:, None])
            total = tl.sum(p, 1)
            acc = tl.zeros([ROWS, BLOCK_DV], dtype=tl.float32)
            acc = dot(narrow(p, v.dtype), v, acc)
            out = narrow(acc * (1.0 / total)[:, None], part_ptr.dtype.element_ty)
            to = query * G + head
            # Only the merge kernel reads the partial results, so they should not evict q from L2.
            tl.store(
                part_ptr + to[:, None] * DV + dv[None, :],
                out,
                mask=real[:, None] & (dv[None, :] < DV),
                eviction_policy="evict_first",
            )
            tl.store(plse_ptr + to, top + tl.log2(total), mask=real)


@triton.jit(do_not_specialize=CHUNK_AND_HEAD)
def merge_kernel(
    part_ptr,
    plse_ptr,
    places_ptr,
    out_ptr,
    lse_ptr,
    total_ptr,
    cmp_ptr,
    win_ptr,
    gates_ptr,
    H,
    segment_size,
    first_token,
    end_token,
    first_head,
    S: tl.constexpr,
    BLOCK_S: tl.constexpr,
    G: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    ROWS: tl.constexpr,
    GATED: tl.constexpr,
    KEPT: tl.constexpr,
):
    """Program (rows, KV head): merge the partial results of rows (token, head) in order of choice.

    If GATED, add up the branches (compression, this one, window), weighted by gates [N,HQ,3], in
    ``total_ptr``, which may be ``win_ptr``, since a row is read before it is written. If KEPT,
    write out and lse.
    """
    local = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = (first_token + local // G).to(tl.int64)
    local_h = tl.program_id(1).to(tl.int64)
    head = local % G
    real = token < end_token
    row = (token * H + first_head + local_h) * G + head
    places_ptr += (token * H + first_head + local_h) * S
    segment = local_h * segment_size
    s = tl.arange(0, BLOCK_S)
    live = real[:, None] & (s[None, :] < S)
    places = tl.load(places_ptr[:, None] + s[None, :], mask=live, other=-1)
    all_at = (segment + places) * G + head[:, None]
    lses = tl.load(plse_ptr + all_at, mask=places >= 0, other=float("-inf"))
    top = tl.max(lses, 1)
    some = top > float("-inf")
    top = tl.where(some, top, 0.0)
    total = tl.sum(tl.exp2(lses - top[:, None]), 1)
    dv = tl.arange(0, BLOCK_DV)
    acc = tl.zeros([ROWS, BLOCK_DV], dtype=tl.float32)
    for begin in range(0, S, UNROLLED):
        for step in tl.static_range(S if S < UNROLLED else UNROLLED):
            slot = begin + step
            place = tl.load(places_ptr + slot, mask=real & (slot < S), other=-1)
            chosen = place >= 0
            offset = (segment + place) * G + head
            weight = tl.exp2(tl.load(plse_ptr + offset, mask=chosen, other=float("-inf")) - top)
            part = tl.load(
                part_ptr + offset[:, None] * DV + dv[None, :],
                mask=chosen[:, None] & (dv[None, :] < DV),
                other=0.0,
            )
            acc += part.to(tl.float32) * weight[:, None]
    out, divisor = normalised(acc, total, some)
    to = row[:, None] * DV + dv[None, :]
    mask = real[:, None] & (dv[None, :] < DV)
    if KEPT:
        tl.store(out_ptr + to, narrow(out, out_ptr.dtype.element_ty), mask=mask)
    if GATED:
        gates_ptr += row * 3
        gate = tl.load(gates_ptr + 1, mask=real, other=0.0).to(tl.float32)
        out = out * gate[:, None]
        gate = tl.load(gates_ptr, mask=real, other=0.0).to(tl.float32)
        out += tl.load(cmp_ptr + to, mask=mask, other=0.0).to(tl.float32) * gate[:, None]
        gate = tl.load(gates_ptr + 2, mask=real, other=0.0).to(tl.float32)
        out += tl.load(win_ptr + to, mask=mask, other=0.0).to(tl.float32) * gate[:, None]
        tl.store(total_ptr + to, narrow(out, total_ptr.dtype.element_ty), mask=mask)
    if KEPT:
        lse = log_sum_exp(top, divisor, some)
        tl.store(lse_ptr + row, lse, mask=real)
