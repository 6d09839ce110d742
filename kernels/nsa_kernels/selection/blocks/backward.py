"""Block-major backward: dK and dV stay with a block, dQ leaves as one partial a (query, block).

The probabilities are recomputed from the LSE. A work item sums dK and dV of its block over its
queries; the first item of a block adds them to the total itself, further items leave theirs in a
workspace from which they are added in order. Nothing is summed by atomics, so two runs agree bit
for bit.
"""

from __future__ import annotations

import torch

from ...jit.compat import dot, narrow, tl, triton
from ...jit.tiles import load_tile
from ...launch.checks import LOG2_E, cdiv, head_dims, next_power_of_2, on_its_device
from .config import BlockConfig, beyond_int32
from .plan import CHUNK_AND_HEAD, UNROLLED, BlockPlan


@triton.jit
def delta_kernel(
    out_ptr,
    do_ptr,
    delta_ptr,
    n_rows,
    HQ,
    do_st,
    do_sh,
    do_sd,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Program (rows of out [N * HQ, Dv]): the sum of out * dO of each row."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dv = tl.arange(0, BLOCK_DV)
    mask = (row < n_rows)[:, None] & (dv[None, :] < DV)
    out = tl.load(out_ptr + row[:, None] * DV + dv[None, :], mask=mask, other=0.0)
    do_row = (row // HQ) * do_st + (row % HQ) * do_sh
    do = tl.load(do_ptr + do_row[:, None] + dv[None, :] * do_sd, mask=mask, other=0.0)
    tl.store(delta_ptr + row, tl.sum(out.to(tl.float32) * do.to(tl.float32), 1), mask=row < n_rows)


@triton.jit(do_not_specialize=CHUNK_AND_HEAD)
def backward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
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
    q_sd,
    k_st,
    k_sh,
    k_sd,
    v_st,
    v_sh,
    v_sd,
    do_st,
    do_sh,
    do_sd,
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
    PRECISION: tl.constexpr,
):
    """Program (work item, head): dK and dV of one block over its queries, and their partial dQ.

    ``dk_ptr`` fp32 [N, HEADS, D] and ``dv_ptr`` fp32 [N, HEADS, Dv] are added to, HEADS being those
    of the launch; ``spill_ptr`` fp32 [slots, BLOCK_SIZE, D + Dv] takes what items other than a
    block's first have summed.
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
        key = tl.load(edges_ptr + bin_ * 2) + tl.arange(0, BLOCK_SIZE)
        held = key < tl.load(edges_ptr + bin_ * 2 + 1)
        d = tl.arange(0, BLOCK_D)
        dv = tl.arange(0, BLOCK_DV)
        at = key.to(tl.int64)
        k = load_tile(k_ptr + h * k_sh, at, d, k_st, k_sd, held, D, BLOCK_D, True)
        v = load_tile(v_ptr + h * v_sh, at, dv, v_st, v_sd, held, DV, BLOCK_DV, True)
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
            # Registers, as in the forward.
            token = t
            if WIDE:
                token = t.to(tl.int64)
            q_row = token * q_st + head * q_sh
            do_row = token * do_st + head * do_sh
            q = load_tile(q_ptr, q_row, d, 1, q_sd, real, D, BLOCK_D, True)
            do = load_tile(do_ptr, do_row, dv, 1, do_sd, real, DV, BLOCK_DV, True)
            # Rows that are not real get probability 0.
            lse = tl.load(lse_ptr + token * HQ + head, mask=real, other=float("inf"))
            delta = tl.load(delta_ptr + token * HQ + head, mask=real, other=0.0)
            s = tl.zeros([ROWS, BLOCK_SIZE], dtype=tl.float32)
            s = dot(q, tl.trans(k), s, PRECISION)
            p = tl.exp2(s * scale_log2 - (lse * 1.4426950408889634)[:, None])
            p = tl.where(key[None, :] <= t[:, None], p, 0.0)
            dv_sum = dot(tl.trans(narrow(p, q.dtype)), do, dv_sum, PRECISION)
            dp = tl.zeros([ROWS, BLOCK_SIZE], dtype=tl.float32)
            dp = dot(do, tl.trans(v), dp, PRECISION)
            ds = narrow(p * (dp - delta[:, None]), q.dtype)
            dk_sum = dot(tl.trans(ds), q, dk_sum, PRECISION)
            dq = tl.zeros([ROWS, BLOCK_D], dtype=tl.float32)
            dq = dot(ds, k, dq, PRECISION)
            to = query * G + head
            tl.store(
                dq_part_ptr + to[:, None] * D + d[None, :],
                narrow(dq, dq_part_ptr.dtype.element_ty),
                mask=real[:, None] & (d[None, :] < D),
                eviction_policy="evict_first",
            )
        dk_sum *= sm_scale
        row = at[:, None] * tl.num_programs(1) + local_h
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


@triton.jit(do_not_specialize=CHUNK_AND_HEAD)
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
    """Program (bin, head, columns of dK | dV): add what further items of the block summed."""
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
        at = (key.to(tl.int64) * tl.num_programs(1) + local_h)[:, None]
        in_k = mask & (col[None, :] < D)
        in_v = mask & (col[None, :] >= D)
        to_k = dk_ptr + at * D + col[None, :]
        to_v = dv_ptr + at * DV + (col[None, :] - D)
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
):
    """Program (rows, KV head): the sum of the partials of each row (token, head), slot by slot."""
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
            at = (local_h * segment_size + place) * G + head
            part = tl.load(
                dq_part_ptr + at[:, None] * D + d[None, :],
                mask=chosen[:, None] & (d[None, :] < D),
                other=0.0,
            )
            total += part.to(tl.float32)
    tl.store(
        dq_ptr + row[:, None] * D + d[None, :],
        narrow(total * sm_scale, dq_ptr.dtype.element_ty),
        mask=real[:, None] & (d[None, :] < D),
    )


@on_its_device
def block_major_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    plan: BlockPlan,
    sm_scale: float,
    heads: int,
    config: BlockConfig,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq [N, HQ, D], dk [N, H, D], dv [N, H, Dv] in q's dtype, from what the forward gave.

    Args:
        out, lse: [N, HQ, Dv] and [N, HQ], contiguous; do: [N, HQ, Dv].
        heads: as the forward's.
    """
    n, hq, d = q.shape
    h, dv = v.shape[1:]
    g, s = hq // h, plan.places.shape[2]
    dims = head_dims(d, dv)
    floats = {"dtype": torch.float32, "device": q.device}
    delta = torch.empty((n, hq), **floats)
    delta_kernel[(cdiv(n * hq, 32),)](
        out, do, delta, n * hq, hq, *do.stride(), DV=dv, BLOCK_DV=dims["BLOCK_DV"], ROWS=32
    )
    queries = config.queries
    items = plan.items(queries)
    segment = plan.entries.shape[2]
    dk_sum = torch.empty((n, heads, d), **floats)
    dv_sum = torch.empty((n, heads, dv), **floats)
    spill_slots = segment // queries + 1
    spill = torch.empty((heads * spill_slots, plan.block_size, d + dv), **floats)
    part = torch.empty(heads * segment * g * d, dtype=q.dtype, device=q.device)
    dq, dk, dv_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    width = min(64, next_power_of_2(d + dv))
    merge_rows = max(4, min(32, 512 // dims["BLOCK_D"]))
    for first_head in range(0, h, heads):
        here = min(heads, h - first_head)
        dk_here, dv_here = (x.view(-1)[: n * here * x.shape[2]].zero_() for x in (dk_sum, dv_sum))
        for c in range(plan.chunks):
            first = c * plan.chunk
            last = min(first + plan.chunk, n)
            lists = (plan.first[c], plan.count[c], plan.edges)
            backward_kernel[(items.shape[2], here)](
                q,
                k,
                v,
                do,
                lse,
                delta,
                part,
                dk_here,
                dv_here,
                spill,
                plan.entries[c],
                items[c],
                *lists,
                *q.stride(),
                *k.stride(),
                *v.stride(),
                *do.stride(),
                h,
                plan.n_bins,
                segment,
                spill_slots,
                first,
                first_head,
                sm_scale * LOG2_E,
                sm_scale,
                G=g,
                PAD_G=next_power_of_2(g),
                **dims,
                BLOCK_SIZE=plan.block_size,
                QUERIES=queries,
                ROWS=config.rows,
                WIDE=beyond_int32(q, do, lse),
                PRECISION="ieee",
                num_warps=config.warps,
                num_stages=1,
                maxnreg=config.registers,
            )
            spill_kernel[(plan.n_bins, here, cdiv(d + dv, width))](
                spill,
                dk_here,
                dv_here,
                *lists,
                plan.n_bins,
                spill_slots,
                first_head,
                D=d,
                DV=dv,
                WIDTH=width,
                BLOCK_SIZE=plan.block_size,
                QUERIES=queries,
            )
            dq_kernel[(cdiv((last - first) * g, merge_rows), here)](
                part,
                plan.places,
                dq,
                h,
                segment,
                first,
                last,
                first_head,
                sm_scale,
                S=s,
                G=g,
                D=d,
                BLOCK_D=dims["BLOCK_D"],
                ROWS=merge_rows,
                num_warps=1,
            )
        dk[:, first_head : first_head + here] = dk_here.view(n, here, d)
        dv_out[:, first_head : first_head + here] = dv_here.view(n, here, dv)
    return dq, dk, dv_out
