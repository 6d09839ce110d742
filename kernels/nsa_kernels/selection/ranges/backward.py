"""The gradients of ``selection_ranges``: one pass over rows for dq, one over keys for dk and dv.

Nothing is added by atomics, so two calls on the same values agree bit for bit. For dq, a program
reads the spans of its row again. For dk and dv, a program takes a tile of keys, and goes through a
list of the queries with a span in the tile, which ``plan_kernel`` has made. If tiles are few,
several programs share a list, and a last launch adds up their sums. Weights are computed again from
the LSE: with p = exp(scale q.k - lse) and delta = rowsum(out do) - dlse,

    dv = p^T do;  ds = p (do v^T - delta);  dq = scale ds k;  dk = scale ds^T q

(FlashAttention-2, arXiv 2307.08691, algorithm 2; dlse is the gradient of the LSE, if it is used.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...jit.compat import PIPELINES_GATHERS
from ...launch.device import device_limits
from ...launch.replay import replayed
from ...launch.shares import add_shares, clear, room_for_shares
from ...launch.sizes import LOG2_E, batches, cdiv, head_dims, next_power_of_2, strides
from .kernels.backward import (
    plan_kernel,
    ranges_dkdv_kernel,
    ranges_dq_kernel,
    spans_by_query_kernel,
)
from .spans import check_ranges, kernel_spans

MAX_PLAN_BYTES = 1 << 30
"""The most bytes of the lists of queries. If they need more, there are several launches."""
LISTED_BYTES = 4 + 8
"""Bytes of a query in a list: the query's number, and a bit for each key of the tile."""


class Tiles(NamedTuple):
    """Tiles of dq (``keys`` of a row at once), and of dk and dv (``rows`` by ``block_n``)."""

    keys: int
    warps: int
    stages: int
    rows: int
    block_n: int
    dkdv_warps: int
    dkdv_stages: int


def backward_tiles(d: int, dv: int, dtype: torch.dtype) -> Tiles:
    """Return the tiles for head dims. They are small for wide heads and fp32."""
    if max(d, dv) > 128 or dtype == torch.float32:
        side = 16 if max(d, dv) > 128 and dtype == torch.float32 else 32
        return Tiles(32, 4, 1, side, side, 4, 1)
    return Tiles(32, 1, 2, 64 if max(d, dv) > 64 else 128, 64, 4, 2)


@replayed
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
    """Return dq, dk and dv of ``selection_ranges``, whose results were ``out`` and ``lse``.

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
        for x in (dq, dk, dv_):
            clear(x)
        return dq, dk, dv_
    q, k, v, out, lse, grad_out = (t.contiguous() for t in (q, k, v, out, lse, grad_out))
    tiles = backward_tiles(d, dv, q.dtype)
    scale = d**-0.5 if sm_scale is None else float(sm_scale)
    dims = head_dims(d, dv)
    given = kernel_spans(ranges, s_kv)
    delta = torch.empty(lse.shape, dtype=torch.float32, device=lse.device)
    block_h = 16 if q.dtype == torch.float32 else min(max(16, next_power_of_2(h)), 64)
    ranges_dq_kernel[(b * s * g, cdiv(h, block_h))](
        *(q, k, v, given.spans, given.before, out, grad_out, lse),
        *(delta if grad_lse is None else grad_lse.contiguous(), delta, dq),
        *given.strides,
        *(s, g, h, s_kv, n_spans, scale, scale * LOG2_E),
        BLOCK_H=block_h,
        BLOCK_L=tiles.keys,
        SPANS=given.padded,
        SEARCH_STEPS=given.search_steps,
        HAS_DLSE=grad_lse is not None,
        num_warps=tiles.warps,
        num_stages=tiles.stages if PIPELINES_GATHERS else 1,
        **dims,
    )
    spans_by_query = torch.empty((b, g, n_spans, 2, s), dtype=ranges.dtype, device=q.device)
    key_tiles = cdiv(s_kv, tiles.block_n)
    at_once = max(1, min(key_tiles, MAX_PLAN_BYTES // (LISTED_BYTES * b * g * s)))
    lists = torch.empty((b * g * at_once * s,), dtype=torch.int32, device=q.device)
    bits = torch.empty((b * g * at_once * s,), dtype=torch.int64, device=q.device)
    counts = torch.empty((b * g * at_once,), dtype=torch.int32, device=q.device)
    selected = torch.empty((b * g * at_once,), dtype=torch.int64, device=q.device)
    shares = _shares(key_tiles * b * g, s * h, device_limits(q.device).processors)
    dk_parts, dv_parts, share_stride = room_for_shares(dk, dv_, shares)
    # There are several iterations only if the batch is so large that there is one share. Then the
    # parts are dk and dv themselves, so that a slice of them is a slice of the batch.
    for some in batches(b, g):
        heads = (some.stop - some.start) * g
        spans_by_query_kernel[(cdiv(s, 64), heads)](
            *(ranges[some], spans_by_query[some]),
            *strides(ranges),
            *(s, g, n_spans),
            BLOCK_S=64,
            BLOCK_N=min(next_power_of_2(2 * n_spans), 32),
            num_warps=4,
        )
        for first_tile in range(0, key_tiles, at_once):
            tiles_here = min(at_once, key_tiles - first_tile)
            plan_kernel[(tiles_here, heads)](
                *(spans_by_query[some], lists, bits, counts, selected),
                *(s, s_kv, n_spans, first_tile),
                BLOCK_N=tiles.block_n,
                BLOCK_S=min(max(next_power_of_2(s), 16), 1024),
                num_warps=4,
            )
            ranges_dkdv_kernel[(tiles_here, heads, shares)](
                *(*(x[some] for x in (q, k, v)), lists, bits, counts, selected),
                *(x[some] for x in (grad_out, lse, delta, dk_parts, dv_parts)),
                *(s, g, h, s_kv, first_tile, shares, share_stride, scale, scale * LOG2_E),
                BLOCK_M=tiles.rows,
                BLOCK_N=tiles.block_n,
                num_warps=tiles.dkdv_warps,
                num_stages=tiles.dkdv_stages,
                **dims,
            )
    if shares > 1:
        add_shares(dk_parts, dk, dv_)
    return dq, dk, dv_


def _shares(programs: int, rows: int, processors: int) -> int:
    """Return how many programs share a list. Each multiprocessor gets up to two programs, unless a
    share of a list of all queries would then have less than 512 rows."""
    return max(1, min(2 * processors // programs, rows // 512))
