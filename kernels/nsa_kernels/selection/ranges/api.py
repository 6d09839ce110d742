"""``selection_ranges``: any spans of a shared K/V, read in place.

A row's spans are made disjoint in registers (each starts where the spans before it end), and their
keys are numbered 0..total without gaps. A tile takes the next ``block_l`` numbers, whatever spans
they fall in, and turns them into key positions. So short spans waste no part of a tile, overlaps
count once, and nothing is packed or written. See docs/explanation/kernels/spans.md.
"""

from __future__ import annotations

import torch

from ...jit.compat import start_next_launch, tl, triton, wait_for_last_launch
from ...jit.tiles import attend_tile, load_tile, store_row, store_share
from ...launch import checks as check
from ...launch.shares import Shares, merge, workspace
from ..config import Config, check_heads, dependent_launch, launch_options, ranges_config
from .spans import kernel_spans, key_of, numbered_spans

MIN_SHARE = 128
"""Keys of a share at least, a multiple of every tile size used with splits."""


@triton.jit
def ranges_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    spans_ptr,
    before_ptr,
    out_ptr,
    lse_ptr,
    part_ptr,
    plse_ptr,
    table_ptr,
    q_sb,
    q_ss,
    q_sg,
    q_sh,
    q_sd,
    k_sb,
    k_sg,
    k_sl,
    k_sd,
    v_sb,
    v_sg,
    v_sl,
    v_sd,
    r_sb,
    r_ss,
    r_sg,
    r_sn,
    r_se,
    S,
    G,
    H,
    S_KV,
    n_spans,
    scale_log2,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_L: tl.constexpr,
    SPANS: tl.constexpr,
    SEARCH_STEPS: tl.constexpr,
    MIN_SHARE: tl.constexpr,
    SPLIT: tl.constexpr,
    LATE: tl.constexpr,
    DEPENDENT: tl.constexpr,
    PDL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (row, split, head tile); row = (b * S + s) * G + g.

    DEPENDENT: of what it reads, the launch before writes the spans only.
    """
    start_next_launch(PDL)
    r = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    n_splits = tl.num_programs(1)
    g = r % G
    s = (r // G) % S
    b = r // G // S
    head0 = tl.program_id(2) * BLOCK_H
    heads = head0 + tl.arange(0, BLOCK_H)
    heads_ok = heads < H
    d = tl.arange(0, BLOCK_D)
    q = load_tile(
        q_ptr + b * q_sb + s * q_ss + g * q_sg,
        heads.to(tl.int64),
        d,
        q_sh,
        q_sd,
        heads_ok,
        D,
        BLOCK_D,
        True,
    )
    k_base = k_ptr + b * k_sb + g * k_sg
    v_base = v_ptr + b * v_sb + g * v_sg
    spans = spans_ptr + b * r_sb + s * r_ss + g * r_sg
    before = before_ptr + r * (n_spans + 1)
    wait_for_last_launch(DEPENDENT)
    number, stop, shift, total = numbered_spans(
        spans, before, r_sn, r_se, n_spans, S_KV, SPANS, SEARCH_STEPS
    )
    tiles = tl.cdiv(total, BLOCK_L)
    # No share below MIN_SHARE keys: merging it would cost more than it saves.
    chunk = tl.maximum(tl.cdiv(tiles, n_splits) * BLOCK_L, MIN_SHARE)
    n_parts = tl.cdiv(total, chunk)
    lo = split * chunk
    if split < tl.maximum(n_parts, 1):
        hi = tl.minimum(lo + chunk, total)
        row_max = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
        sums = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
        acc = tl.zeros([BLOCK_H, BLOCK_DV], dtype=tl.float32)
        for start in range(lo, hi, BLOCK_L):
            pos = start + tl.arange(0, BLOCK_L)
            valid = pos < hi
            key = key_of(
                pos, valid, spans, before, r_sn, number, stop, shift, n_spans, SEARCH_STEPS
            )
            row_max, sums, acc = attend_tile(
                q,
                start >= lo,
                k_base,
                v_base,
                key.to(tl.int64),
                valid,
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
                True,
                LATE,
                PRECISION,
            )
        row_sum = tl.sum(sums, 1)
        out_row = out_ptr + r * H * DV
        lse_row = lse_ptr + r * H
        if SPLIT:
            slot = r * n_splits + split
            if (split == 0) & (head0 == 0):
                tl.store(table_ptr + r * 2, slot.to(tl.int32))
                tl.store(table_ptr + r * 2 + 1, n_parts)
            if n_parts > 1:
                store_share(
                    part_ptr, plse_ptr, slot, acc, row_max, row_sum, head0, H, DV, BLOCK_H, BLOCK_DV
                )
            else:
                store_row(out_row, lse_row, acc, row_max, row_sum, head0, H, DV, BLOCK_H, BLOCK_DV)
        else:
            store_row(out_row, lse_row, acc, row_max, row_sum, head0, H, DV, BLOCK_H, BLOCK_DV)


def check_ranges(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ranges: torch.Tensor
) -> torch.Tensor:
    """Check how the inputs of ``selection_ranges`` fit together; ranges as a view [B,S,G,n,2].

    Raises:
        TypeError: ranges not int32 or int64.
        ValueError: shapes or devices that do not fit together.
    """
    if ranges.dim() == 4:
        ranges = ranges.unsqueeze(0)
        ranges = ranges.expand(q.shape[0], -1, -1, -1, -1)
    if not (
        q.dim() == 5
        and k.dim() == v.dim() == 4
        and k.shape[:3] == v.shape[:3]
        and k.shape[:2] == (q.shape[0], q.shape[2])
        and k.shape[3] == q.shape[4]
        and ranges.dim() == 5
        and ranges.shape[:3] == q.shape[:3]
        and ranges.shape[4] == 2
        and q.shape[3] >= 1
    ):
        raise ValueError(
            "selection_ranges: expected q [B,S,G,h,D], k [B,G,S_kv,D], v [B,G,S_kv,Dv], "
            f"ranges [B,S,G,n,2] or [S,G,n,2] with h >= 1; got {tuple(q.shape)}, "
            f"{tuple(k.shape)}, {tuple(v.shape)}, {tuple(ranges.shape)}"
        )
    if ranges.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"selection_ranges: ranges must be int32 or int64, got {ranges.dtype}")
    if ranges.device != q.device:
        raise ValueError(f"selection_ranges: ranges is on {ranges.device}, q on {q.device}")
    if k.shape[2] >= 2**30:
        raise ValueError(f"selection_ranges: S_kv must be below 2**30, got {k.shape[2]}")
    return ranges


def selection_ranges(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    *,
    sm_scale: float | None = None,
    selected_len: int | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each row's h queries over the union of the row's spans, differentiable.

    Args:
        q: [B, S, G, h, D], float16, bfloat16 or float32, any strides.
        k: [B, G, S_kv, D], same dtype, any strides.
        v: [B, G, S_kv, Dv], same dtype, any strides.
        ranges: int32 or int64 [B, S, G, n, 2] (or [S, G, n, 2], the same for every batch entry):
            half-open spans [start, end) in any order. They may overlap (a key counts once), reach
            out of [0, S_kv] (clamped) or be reversed (empty). The values stay on the device.
        sm_scale: factor on q.k; 1/sqrt(D) when None.
        selected_len: upper bound of the keys a row selects, when the caller knows one; only a hint
            for the number of splits, results do not depend on it being right.
        config: launch configuration; chosen from the shapes when None.

    Returns:
        out [B, S, G, h, Dv] in q's dtype and lse [B, S, G, h] float32 (natural log), both
        contiguous; a row that selects nothing gives out = 0, lse = -inf.

    Raises:
        TypeError: unsupported or mixed dtypes, ranges not int32 or int64.
        ValueError: shapes that do not fit together, head dims outside 16..256, wrong device, a
            config of another shape.
    """
    check.check_qkv("selection_ranges", q, k, v)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        if config is not None:
            raise ValueError("selection_ranges: a given config has no backward; leave it out")
        out, lse = torch.ops.nsa_kernels.selection_ranges(q, k, v, ranges, sm_scale, selected_len)
        return out, lse
    return launch_ranges(q, k, v, ranges, sm_scale, selected_len, config)


@check.on_its_device
def launch_ranges(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    sm_scale: float | None,
    selected_len: int | None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``selection_ranges`` on q, k, v whose dtypes, devices and head dims are known to be fine."""
    ranges = check_ranges(q, k, v, ranges)
    shares = range_shares(q, k, v, ranges, sm_scale, selected_len, config)
    if shares.splits > 1:
        slots = shares.plse.numel() // q.shape[3]
        merge(shares.out, shares.lse, *shares[2:], slots)
    return shares.out, shares.lse


def range_shares(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    sm_scale: float | None,
    selected_len: int | None,
    config: Config | None = None,
    dependent: bool = False,
) -> Shares:
    """The first launch of ``selection_ranges``, on inputs that were checked.

    ``dependent``: it starts beside the launch before, which writes ``ranges`` and nothing else that
    it reads.
    """
    b, s, g, h, d = q.shape
    s_kv, dv = v.shape[2], v.shape[3]
    n_spans = ranges.shape[3]
    rows = b * s * g
    out = torch.empty((b, s, g, h, dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((b, s, g, h), dtype=torch.float32, device=q.device)
    if rows == 0:
        return Shares(out, lse, lse, lse, None, 1)
    if config is None:
        config = ranges_config(rows, h, n_spans, s_kv, d, dv, selected_len, q.dtype, q.device)
    else:
        check_heads("selection_ranges", config, h)
        check.require(config.splits >= 1, f"selection_ranges: {config} has no splits")
    part = plse = table = lse
    if config.splits > 1:
        part, plse = workspace(q, rows * config.splits, h, dv)
        table = torch.empty((rows, 2), dtype=torch.int32, device=q.device)
    given = kernel_spans(ranges, s_kv)
    ranges_kernel[(rows, config.splits, config.head_tiles)](
        q,
        k,
        v,
        given.spans,
        given.before,
        out,
        lse,
        part,
        plse,
        table,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        *given.strides,
        s,
        g,
        h,
        s_kv,
        n_spans,
        check.scale_log2(sm_scale, d),
        **check.head_dims(d, dv),
        BLOCK_H=config.block_h,
        BLOCK_L=config.block_l,
        SPANS=given.padded,
        SEARCH_STEPS=given.search_steps,
        MIN_SHARE=max(config.block_l, MIN_SHARE),
        SPLIT=config.splits > 1,
        LATE=config.late,
        DEPENDENT=dependent,
        PDL=dependent or (config.splits > 1 and dependent_launch(q.device)),
        PRECISION="ieee",
        num_warps=config.num_warps,
        # Tritons 3.0 and 3.1 cannot pipeline loads behind the chain of loads of the search.
        num_stages=1 if given.search_steps else config.num_stages,
        **launch_options(dependent),
    )
    return Shares(out, lse, part, plse, table, config.splits)
