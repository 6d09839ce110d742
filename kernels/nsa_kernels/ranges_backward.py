"""The gradients of ``selection_ranges``: one pass over rows for dq, one over keys for dk and dv.

Nothing is added up by atomics, so two calls on the same values are equal to the bit. dq of a row
reads its spans again. dk and dv belong to tiles of keys: a plan lists, for each tile, the queries
with a span in it, in order, and one program walks the list. Weights are made again from the LSE:
with p = exp(scale q.k - lse) and delta = rowsum(out do) - dlse,

    dv = p^T do;  ds = p (do v^T - delta);  dq = scale ds k;  dk = scale ds^T q

(FlashAttention-2, arXiv 2307.08691, algorithm 2; dlse is the gradient of the LSE, if it is used.)
"""

from __future__ import annotations

import torch

from . import _checks as check
from ._fakes import gradients
from ._tiles import load_tile
from ._triton_compat import PIPELINES_GATHERS, dot, narrow, tl, triton
from .ranges import check_ranges, launch_ranges
from .spans import disjoint_spans

MAX_PLAN_BYTES = 1 << 30
"""Memory of the lists of queries; tiles of keys beyond it are planned in a later round."""

LOG2_E = tl.constexpr(check.LOG2_E)


@triton.jit
def probabilities(q, k, lse, chosen, scale_log2, PRECISION: tl.constexpr):
    """exp(scale q.k - lse) [rows, keys] where chosen, else 0; ``lse`` is the natural logarithm."""
    s = tl.zeros([q.shape[0], k.shape[0]], dtype=tl.float32)
    s = dot(q, tl.trans(k), s, PRECISION) * scale_log2
    # The exponent of a key that is not chosen may be anything: nothing infinite may come of it.
    return tl.exp2(tl.where(chosen, s - (lse * LOG2_E)[:, None], float("-inf")))


@triton.jit
def score_gradients(p, do, v, delta, PRECISION: tl.constexpr):
    """ds / scale [rows, keys]."""
    dp = tl.zeros([do.shape[0], v.shape[0]], dtype=tl.float32)
    dp = dot(do, tl.trans(v), dp, PRECISION)
    return p * (dp - delta[:, None])


@triton.jit
def dq_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    start_ptr,
    before_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
    S,
    G,
    H,
    S_KV,
    n_spans,
    scale,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_L: tl.constexpr,
    SEARCH_STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (row, head tile); row = (b * S + s) * G + g."""
    r = tl.program_id(0).to(tl.int64)
    kv = r // G // S * G + r % G
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    heads_ok = heads < H
    at = r * H + heads
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    q = load_tile(q_ptr, at, d, D, 1, heads_ok, D, BLOCK_D, True)
    do = load_tile(do_ptr, at, dv, DV, 1, heads_ok, DV, BLOCK_DV, True)
    lse = tl.load(lse_ptr + at, mask=heads_ok, other=0.0)
    delta = tl.load(delta_ptr + at, mask=heads_ok, other=0.0)
    start = start_ptr + r * n_spans
    before = before_ptr + r * (n_spans + 1)
    total = tl.load(before + n_spans)
    dq = tl.zeros([BLOCK_H, BLOCK_D], dtype=tl.float32)
    for first in range(0, total, BLOCK_L):
        pos = first + tl.arange(0, BLOCK_L)
        valid = pos < total
        # The last span whose first number is <= pos, as in the forward.
        found = tl.zeros([BLOCK_L], dtype=tl.int32)
        for step in tl.static_range(SEARCH_STEPS):
            trial = found + (1 << (SEARCH_STEPS - 1 - step))
            number = tl.load(before + trial, mask=trial < n_spans, other=2147483647)
            found = tl.where(number <= pos, trial, found)
        key = tl.load(start + found, mask=valid, other=0)
        key += pos - tl.load(before + found, mask=valid, other=0)
        key_at = kv * S_KV + key.to(tl.int64)
        k = load_tile(k_ptr, key_at, d, D, 1, valid, D, BLOCK_D, True)
        v = load_tile(v_ptr, key_at, dv, DV, 1, valid, DV, BLOCK_DV, True)
        chosen = heads_ok[:, None] & valid[None, :]
        p = probabilities(q, k, lse, chosen, scale_log2, PRECISION)
        ds = score_gradients(p, do, v, delta, PRECISION)
        dq = dot(narrow(ds, k.dtype), k, dq, PRECISION)
    tl.store(
        dq_ptr + at[:, None] * D + d[None, :],
        narrow(dq * scale, dq_ptr.dtype.element_ty),
        mask=heads_ok[:, None] & (d[None, :] < D),
    )


@triton.jit
def plan_kernel(
    spans_ptr,
    list_ptr,
    count_ptr,
    S,
    G,
    n_spans,
    first_tile,
    BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Program (tile, b * G + g): the queries with a span in the tile's keys, in order."""
    tile = tl.program_id(0)
    kv = tl.program_id(1).to(tl.int64)
    low = (first_tile + tile) * BLOCK_N
    slot = kv * tl.num_programs(0) + tile
    spans = spans_ptr + (kv // G * S * G + kv % G) * n_spans * 2
    filled = 0
    for s0 in range(0, S, BLOCK_S):
        s = s0 + tl.arange(0, BLOCK_S)
        of_query = spans + s.to(tl.int64) * G * n_spans * 2
        hit = tl.zeros([BLOCK_S], dtype=tl.int32)
        for j in range(n_spans):
            begin = tl.load(of_query + 2 * j, mask=s < S, other=0)
            end = tl.load(of_query + 2 * j + 1, mask=s < S, other=0)
            meets = tl.maximum(begin, low) < tl.minimum(end, low + BLOCK_N)
            hit = hit | meets.to(tl.int32)
        at = filled + tl.cumsum(hit, 0) - hit
        tl.store(list_ptr + slot * S + at, s, mask=hit > 0)
        filled += tl.sum(hit, 0)
    tl.store(count_ptr + slot, filled)


@triton.jit
def dkdv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    spans_ptr,
    list_ptr,
    count_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    S,
    G,
    H,
    S_KV,
    n_spans,
    first_tile,
    scale,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (tile, b * G + g): dk and dv of the tile's keys, over the listed queries' heads."""
    tile = tl.program_id(0)
    kv = tl.program_id(1).to(tl.int64)
    slot = kv * tl.num_programs(0) + tile
    keys = (first_tile + tile) * BLOCK_N + tl.arange(0, BLOCK_N)
    keys_ok = keys < S_KV
    key_at = kv * S_KV + keys
    d = tl.arange(0, BLOCK_D)
    e = tl.arange(0, BLOCK_DV)
    k = load_tile(k_ptr, key_at, d, D, 1, keys_ok, D, BLOCK_D, True)
    v = load_tile(v_ptr, key_at, e, DV, 1, keys_ok, DV, BLOCK_DV, True)
    dk = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_DV], dtype=tl.float32)
    rows = tl.load(count_ptr + slot) * H
    first_row = kv // G * S * G + kv % G
    for m0 in range(0, rows, BLOCK_M):
        # Head after head of query after query: no tile is padded for the number of heads.
        m = m0 + tl.arange(0, BLOCK_M)
        valid = m < rows
        s = tl.load(list_ptr + slot * S + m // H, mask=valid, other=0)
        row = first_row + s.to(tl.int64) * G
        at = row * H + m % H
        q = load_tile(q_ptr, at, d, D, 1, valid, D, BLOCK_D, True)
        do = load_tile(do_ptr, at, e, DV, 1, valid, DV, BLOCK_DV, True)
        lse = tl.load(lse_ptr + at, mask=valid, other=0.0)
        delta = tl.load(delta_ptr + at, mask=valid, other=0.0)
        hits = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.int32)
        for j in range(n_spans):
            begin = tl.load(spans_ptr + (row * n_spans + j) * 2, mask=valid, other=0)
            end = tl.load(spans_ptr + (row * n_spans + j) * 2 + 1, mask=valid, other=0)
            inside = (keys[None, :] >= begin[:, None]) & (keys[None, :] < end[:, None])
            hits = hits | inside.to(tl.int32)
        p = probabilities(q, k, lse, hits > 0, scale_log2, PRECISION)
        dv = dot(tl.trans(narrow(p, do.dtype)), do, dv, PRECISION)
        ds = score_gradients(p, do, v, delta, PRECISION)
        dk = dot(tl.trans(narrow(ds, q.dtype)), q, dk, PRECISION)
    tl.store(
        dk_ptr + key_at[:, None] * D + d[None, :],
        narrow(dk * scale, dk_ptr.dtype.element_ty),
        mask=keys_ok[:, None] & (d[None, :] < D),
    )
    tl.store(
        dv_ptr + key_at[:, None] * DV + e[None, :],
        narrow(dv, dv_ptr.dtype.element_ty),
        mask=keys_ok[:, None] & (e[None, :] < DV),
    )


@check.on_its_device
def launch_ranges_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None,
    sm_scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk, dv of ``selection_ranges``, whose results ``out`` and ``lse`` are.

    Args:
        q, k, v, ranges, sm_scale: as ``selection_ranges``.
        grad_out: [B, S, G, h, Dv]. grad_lse: [B, S, G, h] float32, or None if the LSE is not used.

    Returns:
        Contiguous gradients of the shapes and dtype of q, k and v; 0 where nothing is selected.
    """
    ranges = check_ranges(q, k, v, ranges)
    b, s, g, h, d = q.shape
    s_kv, dv, n_spans = v.shape[2], v.shape[3], ranges.shape[3]
    dq, dk, dv_ = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    if q.numel() == 0 or k.numel() == 0 or n_spans == 0:
        return dq.zero_(), dk.zero_(), dv_.zero_()
    q, k, v, grad_out = (t.contiguous() for t in (q, k, v, grad_out))
    delta = (out.float() * grad_out.float()).sum(-1)
    if grad_lse is not None:
        # A row without keys has no LSE to speak of, and no weights either.
        delta = delta - grad_lse
    spans = ranges.clamp(0, s_kv).to(torch.int32).contiguous()
    start, before = disjoint_spans(ranges, s_kv)
    scale = d**-0.5 if sm_scale is None else float(sm_scale)
    block_d, block_dv = check.next_power_of_2(d), check.next_power_of_2(dv)
    wide, exact = max(block_d, block_dv) > 128, q.dtype == torch.float32
    block_n = 32 if wide or exact else 64
    common = {
        "D": d,
        "DV": dv,
        "BLOCK_D": block_d,
        "BLOCK_DV": block_dv,
        "PRECISION": "ieee",
        "num_warps": 4,
        "num_stages": 1 if wide or exact else 2,
    }
    block_h = 16 if exact else min(max(16, check.next_power_of_2(h)), 64)
    dq_kernel[(b * s * g, check.cdiv(h, block_h))](
        q,
        k,
        v,
        start,
        before,
        grad_out,
        lse,
        delta,
        dq,
        s,
        g,
        h,
        s_kv,
        n_spans,
        scale,
        scale * check.LOG2_E,
        BLOCK_H=block_h,
        BLOCK_L=block_n,
        SEARCH_STEPS=(n_spans - 1).bit_length(),
        **(common if PIPELINES_GATHERS else common | {"num_stages": 1}),
    )
    tiles = check.cdiv(s_kv, block_n)
    at_once = max(1, min(tiles, MAX_PLAN_BYTES // (4 * b * g * s)))
    lists = torch.empty(b * g * at_once * s, dtype=torch.int32, device=q.device)
    counts = torch.empty(b * g * at_once, dtype=torch.int32, device=q.device)
    for first_tile in range(0, tiles, at_once):
        grid = (min(at_once, tiles - first_tile), b * g)
        plan_kernel[grid](
            spans, lists, counts, s, g, n_spans, first_tile, BLOCK_N=block_n, BLOCK_S=256
        )
        dkdv_kernel[grid](
            q,
            k,
            v,
            spans,
            lists,
            counts,
            grad_out,
            lse,
            delta,
            dk,
            dv_,
            s,
            g,
            h,
            s_kv,
            n_spans,
            first_tile,
            scale,
            scale * check.LOG2_E,
            BLOCK_M=32 if wide or exact else 64,
            BLOCK_N=block_n,
            **common,
        )
    return dq, dk, dv_


@torch.library.custom_op("nsa_kernels::selection_ranges", mutates_args=())
def ranges_operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    sm_scale: float | None,
    selected_len: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``launch_ranges`` as an operator with a backward: out and lse."""
    return launch_ranges(q, k, v, ranges, sm_scale, selected_len)


@ranges_operator.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    sm_scale: float | None,
    selected_len: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty((*q.shape[:4], v.shape[3])), q.new_empty(q.shape[:4], dtype=torch.float32)


@torch.library.custom_op("nsa_kernels::selection_ranges_backward", mutates_args=())
def backward_operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor,
    sm_scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``launch_ranges_backward`` as an operator."""
    return launch_ranges_backward(q, k, v, ranges, out, lse, grad_out, grad_lse, sm_scale)


backward_operator.register_fake(gradients)


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    q, k, v, ranges, ctx.sm_scale, _ = inputs
    ctx.save_for_backward(q, k, v, ranges, *output)


def _backward(ctx, grad_out, grad_lse):  # type: ignore[no-untyped-def]
    grads = torch.ops.nsa_kernels.selection_ranges_backward(
        *ctx.saved_tensors, grad_out, grad_lse, ctx.sm_scale
    )
    return (*grads, None, None, None)


ranges_operator.register_autograd(_backward, setup_context=_save)
