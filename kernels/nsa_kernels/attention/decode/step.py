"""The launches of a decode step: five, since at short contexts it is launches that take the time.

1. the compressed keys, in shares, and their logits;
2. block scores, which need no more of 1. than the logits and the LSEs of the shares;
3. the selection, and beside it the window as a span;
4. both sets of spans, in shares (as ``ranges``): the window is a second row of each key head;
5. what is left of three merges, and the gated sum.

From 3. on each starts its programs while the one before still runs, where the GPU can (sm_90 on),
and scores, where they are few programs. Where logits would be more bytes than keys, 1. is
``selection_rows`` with its own merge, and 2. reads the keys again; beyond 64 spans ``spans.py``
orders them between 3. and 4.
"""

from __future__ import annotations

import torch

from ...jit.compat import narrow, tl, triton, wait_for_last_launch
from ...jit.tiles import combine_shares
from ...launch import checks as check
from ...launch.shares import Shares
from ...scoring import top_n
from ...selection.config import decode_spans_config, dependent_launch, launch_options
from ...selection.ranges.api import range_shares
from ...selection.rows.api import selection_rows
from .compressed import launch_compressed
from .scores import launch_scores, launch_scores_of_logits

LOGIT_BYTES = 4
"""A logit is written and read; where those of a group are more than a key, keys are read again."""

SETS = 2  # rows of spans a key head: what is selected, and the window


@triton.jit
def decode_merge_kernel(
    out_ptr,
    gates_ptr,
    cmp_out_ptr,
    cmp_part_ptr,
    cmp_plse_ptr,
    spans_out_ptr,
    spans_part_ptr,
    spans_plse_ptr,
    table_ptr,
    H,
    GROUP,
    cmp_shares,
    spans_slots,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    CMP_BLOCK_S: tl.constexpr,
    SPANS_BLOCK_S: tl.constexpr,
    SETS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (key head of a batch, head of its group): gates [.., 3] times the branches, summed.

    CMP_BLOCK_S, SPANS_BLOCK_S: shares that are looked at together; 0 where nothing was split.
    """
    wait_for_last_launch(PDL)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = row * GROUP + head
    dv = tl.arange(0, BLOCK_DV)
    if CMP_BLOCK_S > 0:
        branch, _ = combine_shares(
            cmp_part_ptr,
            cmp_plse_ptr,
            row * cmp_shares,
            cmp_shares,
            head,
            GROUP,
            DV,
            BLOCK_DV,
            CMP_BLOCK_S,
        )
    else:
        branch = tl.load(cmp_out_ptr + at * DV + dv, mask=dv < DV, other=0.0).to(tl.float32)
    total = branch * tl.load(gates_ptr + at * 3).to(tl.float32)
    for i in tl.static_range(SETS):
        spans_row = row // H * (SETS * H) + i * H + row % H
        whole = spans_out_ptr + (spans_row * GROUP + head) * DV + dv
        if SPANS_BLOCK_S > 0:
            first = tl.load(table_ptr + spans_row * 2).to(tl.int64)
            count = tl.minimum(tl.load(table_ptr + spans_row * 2 + 1), spans_slots)
            if count > 1:
                branch, _ = combine_shares(
                    spans_part_ptr,
                    spans_plse_ptr,
                    first,
                    count,
                    head,
                    GROUP,
                    DV,
                    BLOCK_DV,
                    SPANS_BLOCK_S,
                )
            else:
                branch = tl.load(whole, mask=dv < DV, other=0.0).to(tl.float32)
        else:
            branch = tl.load(whole, mask=dv < DV, other=0.0).to(tl.float32)
        total += branch * tl.load(gates_ptr + at * 3 + 1 + i).to(tl.float32)
    tl.store(out_ptr + at * DV + dv, narrow(total, out_ptr.dtype.element_ty), mask=dv < DV)


@check.on_its_device
def launch_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float,
) -> torch.Tensor:
    """``decode_step`` on inputs that were checked."""
    b, hq, d = q.shape
    h, context = k.shape[1:3]
    group = hq // h
    gates = gates.contiguous()
    out = q.new_empty((b, hq, v.shape[3]))
    if out.numel() == 0:
        return out
    pdl = dependent_launch(q.device)
    rows = q.reshape(b * h, group, d)
    k_rows, v_rows = k_cmp.flatten(0, 1), v_cmp.flatten(0, 1)
    n_blocks = check.cdiv(context, block_size)
    if 2 * group * LOGIT_BYTES > d * q.element_size():
        whole, lse = selection_rows(rows, k_rows, v_rows, sm_scale=sm_scale)
        compressed = Shares(whole, lse, lse, lse, None, 1)
        scores = launch_scores(q, k_cmp, lse, n_blocks, block, stride, block_size, sm_scale)
    else:
        compressed, logits = launch_compressed(rows, k_rows, v_rows, sm_scale)
        scores = launch_scores_of_logits(
            logits, compressed, k_cmp.shape[2], b, n_blocks, block, stride, block_size
        )
    ranges = top_n.launch(
        scores.unsqueeze(1), n_selected, block_size, context - 1, window=window, pdl=pdl
    )
    sets = q.reshape(b, 1, h, group, d).expand(-1, SETS, -1, -1, -1)
    longest = min(max(n_selected * block_size, window), context)
    config = decode_spans_config(SETS * b * h, group, longest, d, v.shape[3], q.dtype, q.device)
    spans = range_shares(sets, k, v, ranges, sm_scale, longest, config, dependent=pdl)
    _merge(out, gates, compressed, spans, h)
    return out


def _merge(
    out: torch.Tensor, gates: torch.Tensor, compressed: Shares, spans: Shares, h: int
) -> None:
    b, hq, dv = out.shape
    group = hq // h
    block_dv = check.next_power_of_2(dv)

    def together(shares: Shares) -> int:
        # At most 128 registers a thread of one warp for the tile of shares.
        return min(check.next_power_of_2(shares.splits), max(4096 // block_dv, 2))

    pdl = dependent_launch(out.device)
    decode_merge_kernel[(b * h, group)](
        out,
        gates,
        compressed.out,
        compressed.part,
        compressed.plse,
        spans.out,
        spans.part,
        spans.plse,
        spans.lse if spans.table is None else spans.table,
        h,
        group,
        compressed.splits,
        spans.splits,
        DV=dv,
        BLOCK_DV=block_dv,
        CMP_BLOCK_S=together(compressed) if compressed.splits > 1 else 0,
        SPANS_BLOCK_S=together(spans) if spans.splits > 1 else 0,
        SETS=SETS,
        PDL=pdl,
        num_warps=1,
        num_stages=1,
        **launch_options(pdl),
    )
