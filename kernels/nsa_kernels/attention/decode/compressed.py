"""The compression branch of one token, which leaves its logits for the block scores.

Without them the scores would read all compressed keys once more.
"""

from __future__ import annotations

import torch

from ...jit.compat import dot, start_next_launch, tl, triton
from ...jit.tiles import late, load_tile, softmax_update, store_row, store_share
from ...launch import checks as check
from ...launch.shares import Shares, workspace
from ...launch.tuned import Tile
from ...selection.config import dependent_launch, rows_config

TILE: Tile = (64, 4, 4)
"""Keys, warps, stages: more loads under way than ``rows`` has, for the stores come between."""

LINE = 16
"""Logits of a head begin at multiples of this, so that they are written and read as vectors."""


@triton.jit
def decode_compressed_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    logits_ptr,
    out_ptr,
    lse_ptr,
    part_ptr,
    plse_ptr,
    q_sn,
    q_sh,
    q_sd,
    k_sn,
    k_sl,
    k_sd,
    v_sn,
    v_sl,
    v_sd,
    H,
    L,
    padded,
    chunk,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_L: tl.constexpr,
    SPLIT: tl.constexpr,
    LATE: tl.constexpr,
    PDL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (row, share, head tile): keys ``share * chunk`` up to ``chunk`` further.

    logits: fp32 [rows, H, padded], times scale and log2(e).
    """
    start_next_launch(PDL)
    n = tl.program_id(0).to(tl.int64)
    share = tl.program_id(1)
    head0 = tl.program_id(2) * BLOCK_H
    heads = head0 + tl.arange(0, BLOCK_H)
    heads_ok = heads < H
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    lo = share * chunk
    hi = tl.minimum(lo + chunk, L)
    row_max = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
    sums = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_DV], dtype=tl.float32)
    q = load_tile(q_ptr + n * q_sn, heads.to(tl.int64), d, q_sh, q_sd, heads_ok, D, BLOCK_D, True)
    logits = logits_ptr + (n * H + heads)[:, None] * padded
    for start in range(lo, hi, BLOCK_L):
        pos = start + tl.arange(0, BLOCK_L)
        valid = pos < hi
        at = pos.to(tl.int64)
        k = load_tile(k_ptr + n * k_sn, at, d, k_sl, k_sd, valid, D, BLOCK_D, True)
        v = load_tile(v_ptr + n * v_sn, at, dv, v_sl, v_sd, valid, DV, BLOCK_DV, True)
        s = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
        s = dot(late(q, start >= lo, LATE), tl.trans(k), s, PRECISION) * scale_log2
        # Tiles end where shares do, so that this mask is the same for a whole line.
        tl.store(logits + at[None, :], s, mask=heads_ok[:, None] & (pos < padded)[None, :])
        s = tl.where(valid[None, :], s, float("-inf"))
        row_max, sums, acc = softmax_update(s, v, row_max, sums, acc, PRECISION)
    row_sum = tl.sum(sums, 1)
    if SPLIT:
        slot = n * tl.num_programs(1) + share
        store_share(
            part_ptr, plse_ptr, slot, acc, row_max, row_sum, head0, H, DV, BLOCK_H, BLOCK_DV
        )
    else:
        store_row(
            out_ptr + n * H * DV,
            lse_ptr + n * H,
            acc,
            row_max,
            row_sum,
            head0,
            H,
            DV,
            BLOCK_H,
            BLOCK_DV,
        )


def launch_compressed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sm_scale: float
) -> tuple[Shares, torch.Tensor]:
    """Shares of each row, q [N, H, D] over k [N, L, D], v [N, L, Dv], and logits.

    logits: fp32 [N, H, L or up to LINE - 1 more], what is behind L undefined.
    """
    n, h, d = q.shape
    length, dv = v.shape[1:]
    out = q.new_empty((n, h, dv))
    lse = torch.empty((n, h), dtype=torch.float32, device=q.device)
    padded = check.cdiv(length, LINE) * LINE
    logits = torch.empty((n, h, padded), dtype=torch.float32, device=q.device)
    config = rows_config(n, h, length, d, dv, q.dtype, q.device, TILE, merge=False)
    part = plse = lse
    if config.splits > 1:
        part, plse = workspace(q, n * config.splits, h, dv)
    decode_compressed_kernel[(n, config.splits, config.head_tiles)](
        q,
        k,
        v,
        logits,
        out,
        lse,
        part,
        plse,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        h,
        length,
        padded,
        config.chunk,
        check.scale_log2(sm_scale, d),
        **check.head_dims(d, dv),
        BLOCK_H=config.block_h,
        BLOCK_L=config.block_l,
        SPLIT=config.splits > 1,
        LATE=config.late,
        PDL=dependent_launch(q.device),
        PRECISION="ieee",
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return Shares(out, lse, part, plse, None, config.splits), logits
