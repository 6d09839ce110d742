"""``selection_rows``: one span a row, K/V shared by the row's heads.

``rows_group`` keeps all heads of a row in one program, so each key is read once for all of them;
when there are too few rows to fill the device the span is split and the shares are merged by a
second launch. See docs/explanation/kernels/rows.md.
"""

from __future__ import annotations

import torch

from ...jit.compat import narrow, start_next_launch, tl, triton
from ...jit.tiles import attend_span, attend_tile, load_tile, store_row, store_share
from ...launch import checks as check
from ...launch.shares import Shares, merge, workspace
from ..config import Config, check_chunks, check_heads, dependent_launch, rows_config


@triton.jit
def rows_group_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
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
    chunk,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_L: tl.constexpr,
    SPLIT: tl.constexpr,
    ONE_TILE: tl.constexpr,
    MASKED: tl.constexpr,
    LATE: tl.constexpr,
    PDL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (row, split, head tile): keys ``split * chunk`` up to ``chunk`` further."""
    start_next_launch(PDL)
    n = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    head0 = tl.program_id(2) * BLOCK_H
    heads = head0 + tl.arange(0, BLOCK_H)
    heads_ok = heads < H
    d = tl.arange(0, BLOCK_D)
    k_base = k_ptr + n * k_sn
    v_base = v_ptr + n * v_sn
    q_base = q_ptr + n * q_sn
    lo = split * chunk
    hi = tl.minimum(lo + chunk, L)
    row_max = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
    sums = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_DV], dtype=tl.float32)
    q = load_tile(q_base, heads.to(tl.int64), d, q_sh, q_sd, heads_ok, D, BLOCK_D, True)
    if ONE_TILE:
        pos = lo + tl.arange(0, BLOCK_L)
        row_max, sums, acc = attend_tile(
            q,
            True,
            k_base,
            v_base,
            pos.to(tl.int64),
            pos < hi,
            k_sl,
            k_sd,
            v_sl,
            v_sd,
            row_max,
            sums,
            acc,
            scale_log2,
            D,
            DV,
            BLOCK_D,
            BLOCK_DV,
            MASKED,
            False,
            PRECISION,
        )
    else:
        row_max, sums, acc = attend_span(
            q,
            k_base,
            v_base,
            lo,
            hi,
            k_sl,
            k_sd,
            v_sl,
            v_sd,
            row_max,
            sums,
            acc,
            scale_log2,
            D,
            DV,
            BLOCK_D,
            BLOCK_DV,
            BLOCK_L,
            MASKED,
            LATE,
            PRECISION,
        )
    row_sum = tl.sum(sums, 1)
    out_row = out_ptr + n * H * DV
    lse_row = lse_ptr + n * H
    if SPLIT:
        slot = n * tl.num_programs(1) + split
        store_share(
            part_ptr, plse_ptr, slot, acc, row_max, row_sum, head0, H, DV, BLOCK_H, BLOCK_DV
        )
    else:
        store_row(out_row, lse_row, acc, row_max, row_sum, head0, H, DV, BLOCK_H, BLOCK_DV)


@triton.jit
def rows_per_head_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
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
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """Program (row, head): every head reads the row's K and V again; no tensor cores."""
    n = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    q = tl.load(q_ptr + n * q_sn + h * q_sh + d * q_sd, mask=d < D, other=0.0).to(tl.float32)
    row_max = float("-inf")
    row_sum = 0.0
    acc = tl.zeros([BLOCK_DV], dtype=tl.float32)
    for start in range(0, L, BLOCK_L):
        pos = start + tl.arange(0, BLOCK_L)
        valid = pos < L
        k = load_tile(
            k_ptr + n * k_sn, pos.to(tl.int64), d, k_sl, k_sd, valid, D, BLOCK_D, True
        ).to(tl.float32)
        v = load_tile(
            v_ptr + n * v_sn, pos.to(tl.int64), dv, v_sl, v_sd, valid, DV, BLOCK_DV, True
        ).to(tl.float32)
        s = tl.sum(k * q[None, :], 1) * scale_log2
        s = tl.where(valid, s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 0))
        p = tl.exp2(s - new_max)
        alpha = tl.exp2(row_max - new_max)
        row_sum = row_sum * alpha + tl.sum(p, 0)
        acc = acc * alpha + tl.sum(v * p[:, None], 0)
        row_max = new_max
    safe = tl.where(row_sum > 0, row_sum, 1.0)
    out = acc / safe
    lse = tl.where(row_sum > 0, (row_max + tl.log2(safe)) * 0.6931471805599453, float("-inf"))
    tl.store(out_ptr + (n * H + h) * DV + dv, narrow(out, out_ptr.dtype.element_ty), mask=dv < DV)
    tl.store(lse_ptr + n * H + h, lse)


def check_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    check.check_qkv("selection_rows", q, k, v)
    check.check_no_backward("selection_rows", q, k, v)
    if not (
        q.dim() == k.dim() == v.dim() == 3
        and q.shape[0] == k.shape[0] == v.shape[0]
        and k.shape[1] == v.shape[1]
        and q.shape[1] >= 1
    ):
        raise ValueError(
            "selection_rows: expected q [N,H,D], k [N,L,D], v [N,L,Dv] with H >= 1; "
            f"got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )


@check.on_its_device
def selection_rows(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    sm_scale: float | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each row's H queries over that row's own L keys.

    Args:
        q: [N, H, D], float16, bfloat16 or float32, any strides.
        k: [N, L, D], same dtype, any strides. L = 0 is an empty selection.
        v: [N, L, Dv], same dtype, any strides.
        sm_scale: factor on q.k; 1/sqrt(D) when None.
        config: launch configuration; chosen from the shapes when None.

    Returns:
        out [N, H, Dv] in q's dtype and lse [N, H] float32 (natural log), both contiguous; an
        empty selection gives out = 0, lse = -inf.

    Raises:
        TypeError: unsupported or mixed dtypes.
        ValueError: shapes that do not fit together, head dims outside 16..256, wrong device, an
            input that requires a gradient, a config of another shape.
    """
    check_rows(q, k, v)
    shares = row_shares(q, k, v, sm_scale, config)
    if shares.splits > 1:
        merge(shares.out, shares.lse, shares.part, shares.plse, None, shares.splits)
    return shares.out, shares.lse


def row_shares(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sm_scale: float | None,
    config: Config | None = None,
) -> Shares:
    """The first launch of ``selection_rows``, on inputs that were checked."""
    n, h, d = q.shape
    length, dv = v.shape[1], v.shape[2]
    out = torch.empty((n, h, dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((n, h), dtype=torch.float32, device=q.device)
    if n == 0:
        return Shares(out, lse, lse, lse, None, 1)
    if config is None:
        config = rows_config(n, h, length, d, dv, q.dtype, q.device)
    else:
        check_heads("selection_rows", config, h)
        check_chunks("selection_rows", config.splits, config.chunk, config.block_l, length)
    part = plse = lse
    if config.splits > 1:
        part, plse = workspace(q, n * config.splits, h, dv)
    rows_group_kernel[(n, config.splits, config.head_tiles)](
        q,
        k,
        v,
        out,
        lse,
        part,
        plse,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        h,
        length,
        config.chunk,
        check.scale_log2(sm_scale, d),
        **check.head_dims(d, dv),
        BLOCK_H=config.block_h,
        BLOCK_L=config.block_l,
        SPLIT=config.splits > 1,
        ONE_TILE=length > 0 and config.chunk <= config.block_l,
        MASKED=length % config.block_l != 0,
        LATE=config.late,
        PDL=config.splits > 1 and dependent_launch(q.device),
        PRECISION="ieee",
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return Shares(out, lse, part, plse, None, config.splits)


@check.on_its_device
def selection_rows_per_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``selection_rows`` with one program a head, kept to compare with; same arguments and result.

    Raises:
        TypeError: unsupported or mixed dtypes.
        ValueError: as ``selection_rows``.
    """
    check_rows(q, k, v)
    n, h, d = q.shape
    length, dv = v.shape[1], v.shape[2]
    out = torch.empty((n, h, dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((n, h), dtype=torch.float32, device=q.device)
    if n == 0:
        return out, lse
    rows_per_head_kernel[(n, h)](
        q,
        k,
        v,
        out,
        lse,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        h,
        length,
        check.scale_log2(sm_scale, d),
        **check.head_dims(d, dv),
        BLOCK_L=32,
        num_warps=4,
        num_stages=2,
    )
    return out, lse
