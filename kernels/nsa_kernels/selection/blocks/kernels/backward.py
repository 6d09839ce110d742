"""Kernels of the block-major backward. `selection/blocks/plan.py` explains bins, items, entries."""

from __future__ import annotations

from ....jit.compat import dot, narrow, tl, triton
from ....jit.tiles import base_2, load_tile
from .plan import CHUNK_AND_HEAD, LISTS, UNROLLED


@triton.jit
def delta_kernel(
    out_ptr,
    do_ptr,
    delta_ptr,
    n_rows,
    HQ,
    do_st,
    do_sh,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Program (rows of out [N * HQ, Dv]): store the sum of out * dO of each row."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dv = tl.arange(0, BLOCK_DV)
    mask = (row < n_rows)[:, None] & (dv[None, :] < DV)
    out = tl.load(out_ptr + row[:, None] * DV + dv[None, :], mask=mask, other=0.0)
    do_row = (row // HQ) * do_st + (row % HQ) * do_sh
    do = tl.load(do_ptr + do_row[:, None] + dv[None, :], mask=mask, other=0.0)
    tl.store(delta_ptr + row, tl.sum(out.to(tl.float32) * do.to(tl.float32), 1), mask=row < n_rows)


@triton.jit(do_not_specialize=CHUNK_AND_HEAD, **LISTS)
def backward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    gate_ptr,
    dq_part_ptr,
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
    do_st,
    do_sh,
    H,
    n_bins,
    segment_size,
    spill_slots,
    first_token,
    first_head,
    scale_log2,
    sm_scale,
    G: tl.constexpr,
    PAD_G: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    GATED: tl.constexpr,
):
    """Program (work item, head): store dK and dV of a block over the item's queries, and their dQ.

    The dQ is partial, since a query chose several blocks. If GATED, the output is multiplied by a
    gate [N, HQ] and added to other branches. ``do`` is the gradient of that sum, and ``delta`` the
    sum of the ungated output times ``do``.

    The first item of a block adds to ``dk_ptr`` fp32 [N, HEADS, D] and ``dv_ptr`` fp32
    [N, HEADS, Dv], where HEADS is the number of heads in the launch. All further items store their
    sums in ``spill_ptr`` fp32 [slots, BLOCK_SIZE, D + Dv].
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
        dq_part_ptr += (local_h * segment_size + begin) * G * D
        q_ptr += h * G * q_sh
        do_ptr += h * G * do_sh
        lse_ptr += h * G
        delta_ptr += h * G
        gate_ptr += h * G
        key = tl.load(edges_ptr + bin_ * 2) + tl.arange(0, BLOCK_SIZE)
        held = key < tl.load(edges_ptr + bin_ * 2 + 1)
        d = tl.arange(0, BLOCK_D)
        dv = tl.arange(0, BLOCK_DV)
        offset = key.to(tl.int64)
        k = load_tile(k_ptr + h * k_sh, offset, k_st, held, D, BLOCK_D, True)
        v = load_tile(v_ptr + h * v_sh, offset, v_st, held, DV, BLOCK_DV, True)
        dk_sum = tl.zeros([BLOCK_SIZE, BLOCK_D], dtype=tl.float32)
        dv_sum = tl.zeros([BLOCK_SIZE, BLOCK_DV], dtype=tl.float32)
        HQ = H * G
        rows = tl.arange(0, ROWS)
        head = rows % PAD_G
        for i in range(0, n, ROWS // PAD_G):
            query = i + rows // PAD_G
            real = query < n
            if PAD_G != G:
                real = real & (head < G)
            t = first_token + tl.load(entries_ptr + query, mask=real, other=0)
            # Use 32-bit offsets unless WIDE, to save registers, as in the forward.
            token = t
            if WIDE:
                token = t.to(tl.int64)
            q_row = token * q_st + head.to(token.dtype) * q_sh
            do_row = token * do_st + head * do_sh
            q = load_tile(q_ptr, q_row, 1, real, D, BLOCK_D, True)
            do = load_tile(do_ptr, do_row, 1, real, DV, BLOCK_DV, True)
            # Padded rows get probability 0.
            lse = tl.load(lse_ptr + token * HQ + head, mask=real, other=float("inf"))
            delta = tl.load(delta_ptr + token * HQ + head, mask=real, other=0.0)
            s = tl.zeros([ROWS, BLOCK_SIZE], dtype=tl.float32)
            s = dot(q, tl.trans(k), s)
            p = tl.exp2(s * scale_log2 - base_2(lse)[:, None])
            p = tl.where(key[None, :] <= t[:, None], p, 0.0)
            if GATED:
                p = p * tl.load(gate_ptr + token * HQ + head, mask=real, other=0.0)[:, None]
            dv_sum = dot(tl.trans(narrow(p, q.dtype)), do, dv_sum)
            dp = tl.zeros([ROWS, BLOCK_SIZE], dtype=tl.float32)
            dp = dot(do, tl.trans(v), dp)
            ds = narrow(p * (dp - delta[:, None]), q.dtype)
            dk_sum = dot(tl.trans(ds), q, dk_sum)
            dq = tl.zeros([ROWS, BLOCK_D], dtype=tl.float32)
            dq = dot(ds, k, dq)
            to = query * G + head
            tl.store(
                dq_part_ptr + to[:, None] * D + d[None, :],
                narrow(dq, dq_part_ptr.dtype.element_ty),
                mask=real[:, None] & (d[None, :] < D),
                eviction_policy="evict_first",
            )
        dk_sum *= sm_scale
        row = offset[:, None] * tl.num_programs(1) + local_h
        to_k = row * D + d[None, :]
        to_v = row * DV + dv[None, :]
        mask_k = held[:, None] & (d[None, :] < D)
        mask_v = held[:, None] & (dv[None, :] < DV)
        if start == 0:
            tl.store(dk_ptr + to_k, tl.load(dk_ptr + to_k, mask=mask_k) + dk_sum, mask=mask_k)
            tl.store(dv_ptr + to_v, tl.load(dv_ptr + to_v, mask=mask_v) + dv_sum, mask=mask_v)
        else:
            slot = (local_h * spill_slots + begin // QUERIES) * BLOCK_SIZE + tl.arange(
                0, BLOCK_SIZE
            )
            spill = spill_ptr + slot[:, None] * (D + DV)
            tl.store(spill + d[None, :], dk_sum, mask=mask_k)
            tl.store(spill + D + dv[None, :], dv_sum, mask=mask_v)


@triton.jit(do_not_specialize=CHUNK_AND_HEAD, **LISTS)
def spill_kernel(
    spill_ptr,
    dk_ptr,
    dv_ptr,
    first_ptr,
    count_ptr,
    edges_ptr,
    n_bins,
    spill_slots,
    first_head,
    D: tl.constexpr,
    DV: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """Program (bin, head, columns): add the sums that the bin's items spilled to dK and dV."""
    bin_ = tl.program_id(0)
    local_h = tl.program_id(1).to(tl.int64)
    h = first_head + local_h
    count = tl.load(count_ptr + h * n_bins + bin_)
    if count > QUERIES:
        begin = tl.load(first_ptr + h * n_bins + bin_)
        rows = tl.arange(0, BLOCK_SIZE)
        key = tl.load(edges_ptr + bin_ * 2) + rows
        held = key < tl.load(edges_ptr + bin_ * 2 + 1)
        col = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
        mask = held[:, None] & (col[None, :] < D + DV)
        total = tl.zeros([BLOCK_SIZE, WIDTH], dtype=tl.float32)
        for start in range(QUERIES, count, QUERIES):
            slot = (local_h * spill_slots + (begin + start) // QUERIES) * BLOCK_SIZE + rows
            total += tl.load(spill_ptr + slot[:, None] * (D + DV) + col[None, :], mask=mask)
        offset = (key.to(tl.int64) * tl.num_programs(1) + local_h)[:, None]
        in_k = mask & (col[None, :] < D)
        in_v = mask & (col[None, :] >= D)
        to_k = dk_ptr + offset * D + col[None, :]
        to_v = dv_ptr + offset * DV + (col[None, :] - D)
        tl.store(to_k, tl.load(to_k, mask=in_k) + total, mask=in_k)
        tl.store(to_v, tl.load(to_v, mask=in_v) + total, mask=in_v)


@triton.jit(do_not_specialize=CHUNK_AND_HEAD)
def dq_kernel(
    dq_part_ptr,
    places_ptr,
    dq_ptr,
    H,
    segment_size,
    first_token,
    end_token,
    first_head,
    sm_scale,
    S: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    ADDED: tl.constexpr,
):
    """Program (rows, KV head): add up the partial dQ of each row (token, head), in the order of its
    choices. If ADDED, also add the values in memory."""
    local = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = (first_token + local // G).to(tl.int64)
    local_h = tl.program_id(1).to(tl.int64)
    head = local % G
    real = token < end_token
    row = (token * H + first_head + local_h) * G + head
    places_ptr += (token * H + first_head + local_h) * S
    d = tl.arange(0, BLOCK_D)
    total = tl.zeros([ROWS, BLOCK_D], dtype=tl.float32)
    for begin in range(0, S, UNROLLED):
        for step in tl.static_range(S if S < UNROLLED else UNROLLED):
            slot = begin + step
            place = tl.load(places_ptr + slot, mask=real & (slot < S), other=-1)
            chosen = place >= 0
            offset = (local_h * segment_size + place) * G + head
            part = tl.load(
                dq_part_ptr + offset[:, None] * D + d[None, :],
                mask=chosen[:, None] & (d[None, :] < D),
                other=0.0,
            )
            total += part.to(tl.float32)
    total *= sm_scale
    to = dq_ptr + row[:, None] * D + d[None, :]
    mask = real[:, None] & (d[None, :] < D)
    if ADDED:
        total += tl.load(to, mask=mask, other=0.0).to(tl.float32)
    tl.store(to, narrow(total, dq_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _narrowed(
    sum_ptr,
    to_ptr,
    row,
    to_row,
    real,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDED: tl.constexpr,
):
    """Store fp32 sums as rows of a gradient, in its dtype. If ADDED, add the values in memory."""
    col = tl.arange(0, BLOCK)
    mask = real[:, None] & (col[None, :] < WIDTH)
    total = tl.load(sum_ptr + row[:, None] * WIDTH + col[None, :], mask=mask, other=0.0)
    to = to_row[:, None] * WIDTH + col[None, :]
    if ADDED:
        total += tl.load(to_ptr + to, mask=mask, other=0.0).to(tl.float32)
    tl.store(to_ptr + to, narrow(total, to_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=CHUNK_AND_HEAD)
def dkv_kernel(
    dk_sum_ptr,
    dv_sum_ptr,
    dk_ptr,
    dv_ptr,
    n_rows,
    H,
    heads,
    first_head,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    ROWS: tl.constexpr,
    ADDED: tl.constexpr,
):
    """Program (rows, dk or dv): round fp32 sums [N, heads, D] to the dtype of dk [N, H, D].

    dv has sums [N, heads, Dv]. The sums belong to ``heads`` heads that begin at ``first_head``.
    If ADDED, add the sums to the values of dk and dv. This rounds the result a second time.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = row < n_rows
    to_row = row // heads * H + first_head + row % heads
    if tl.program_id(1) == 0:
        _narrowed(dk_sum_ptr, dk_ptr, row, to_row, real, D, BLOCK_D, ADDED)
    else:
        _narrowed(dv_sum_ptr, dv_ptr, row, to_row, real, DV, BLOCK_DV, ADDED)
