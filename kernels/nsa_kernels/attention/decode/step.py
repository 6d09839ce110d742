"""The five launches of a decode step. At short contexts, launches take most of the time.

1. attend to the compressed keys, in shares, and keep the logits;
2. compute block scores from these logits and the LSEs of the shares;
3. select blocks, as spans; the window is one more span;
4. attend to the spans, in shares: one row of spans for the selection and one for the window;
5. merge the shares of the three branches, and add up the gated sum.

On sm_90 and later, launches 3 to 5 can start their programs while the launch before still runs. So
can launch 2 if it has few programs. If storing and loading logits would take more bytes than the
keys, launch 1 stores none and a merge follows it, and launch 2 reads the keys again. If a row has
more than 64 spans, ``disjoint_spans`` runs between launches 3 and 4.
"""

from __future__ import annotations

import functools

import torch

from ...launch.checks import (
    check_block_table,
    check_lengths,
    check_qkv,
    check_room,
    require,
)
from ...launch.config import Config, fit_tile
from ...launch.device import dependent_launch, device_limits, launch_options, on_its_device
from ...launch.shares import Shares
from ...launch.sizes import cdiv, next_power_of_2
from ...scoring.top_n import LOCAL_BLOCKS, launch_top_n
from ...selection.ranges.forward import range_shares
from .branches import check_groups
from .compressed import Lengths, launch_compressed, rows_of_lengths
from .kernels.gated_sum import decode_merge_kernel
from .scores import launch_scores, launch_scores_of_logits

LOGIT_BYTES = 4
"""Bytes of a logit. If it takes more bytes to store and load logits than to load the keys again,
launch 2 loads the keys."""
SETS = 2  # rows of spans for each key head: the selected blocks, and the window


def _check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    cache_seqlens: torch.Tensor | None,
    block_table: torch.Tensor | None,
    n_selected: int,
) -> int:
    """Check the arguments, and return the capacity of a cache entry in tokens."""
    check_qkv("decode_step", q, k_cmp, v_cmp)
    paged = block_table is not None
    place = "[pages,H,page," if paged else "[B,H,S,"
    require(
        q.dim() == 3
        and q.shape[1] >= 1
        and all(x.dim() == 4 for x in (k, v, k_cmp, v_cmp))
        and (paged or k.shape[0] == q.shape[0])
        and k_cmp.shape[0] == q.shape[0]
        and k.shape[:3] == v.shape[:3]
        and k_cmp.shape[:3] == v_cmp.shape[:3]
        and k.shape[1] == k_cmp.shape[1]
        and v.shape[3] == v_cmp.shape[3]
        and gates.shape == (*q.shape[:2], 3)
        and gates.device == q.device,
        f"decode_step: expected q [B,HQ,D], caches k {place}D] and v {place}Dv], "
        "k_cmp [B,H,Nc,D], v_cmp [B,H,Nc,Dv] and gates [B,HQ,3] on one device; got "
        f"{', '.join(str(tuple(x.shape)) for x in (q, k, v, k_cmp, v_cmp, gates))}",
    )
    if not gates.is_floating_point():
        raise TypeError(f"decode_step: gates must be of a floating dtype; got {gates.dtype}")
    check_groups("decode_step", q.shape[1], k.shape[1])
    require(
        n_selected > LOCAL_BLOCKS,
        f"decode_step: n_selected must be over {LOCAL_BLOCKS} (local blocks); got {n_selected}",
    )
    room: int = k.shape[2]
    if block_table is not None:
        check_block_table("decode_step", block_table, cache_seqlens, q)
        room *= block_table.shape[1]
    check_room("decode_step", room)
    if cache_seqlens is not None:
        check_lengths("decode_step", "cache_seqlens", cache_seqlens, q)
    return room


@functools.lru_cache(maxsize=4096)
def decode_spans_config(
    rows: int, h: int, longest: int, d: int, dv: int, dtype: torch.dtype, device: torch.device
) -> Config:
    """Return the configuration of ``ranges_kernel`` in a decode step, whose rows differ in length.

    Rows are split so that each multiprocessor gets two programs. If there are too many rows for
    that, each is split in three. The longest row gets at most one split for each 128 keys. If rows
    were not split, short rows would end early, and long rows would run on alone.
    """
    limits = device_limits(device)
    share = 2 * limits.processors // (rows * cdiv(h, 64))
    splits = min(share if share > 1 else 3, max(cdiv(longest, 128), 1), 64)
    block_h, block_l, warps, stages = fit_tile(h, d, dv, dtype.itemsize, limits, (64, 4, 3))
    head_tiles = cdiv(h, block_h)
    late = rows * splits * head_tiles <= 4 * limits.processors
    return Config(block_h, block_l, splits, 0, head_tiles, warps, stages, late)


@on_its_device
def run_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    cache_seqlens: torch.Tensor | None,
    block_table: torch.Tensor | None,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float,
) -> torch.Tensor:
    """Check what ``decode_step`` has not checked, and make the launches."""
    context = _check(q, k, v, k_cmp, v_cmp, gates, cache_seqlens, block_table, n_selected)
    if cache_seqlens is not None:
        cache_seqlens = cache_seqlens.contiguous()
    # A larger window could overflow int32 in kernels.
    window = min(window, context)
    b, hq, d = q.shape
    h = k.shape[1]
    group = hq // h
    gates = gates.contiguous()
    out = torch.empty((b, hq, v.shape[3]), dtype=q.dtype, device=q.device)
    if out.numel() == 0:
        return out
    pdl = dependent_launch(q.device)
    rows = q.reshape(b * h, group, d)
    if cache_seqlens is not None:
        # A length above ``context`` counts as ``context``, so drop the keys that end after it.
        keys = max(0, (context - block) // stride + 1)
        k_cmp, v_cmp = k_cmp[:, :, :keys], v_cmp[:, :, :keys]
    k_rows, v_rows = k_cmp.flatten(0, 1), v_cmp.flatten(0, 1)
    n_blocks = cdiv(context, block_size)
    lengths = None if cache_seqlens is None else Lengths(cache_seqlens, block, stride)
    if 2 * group * LOGIT_BYTES > d * q.element_size():
        whole, lse = rows_of_lengths(rows, k_rows, v_rows, sm_scale, lengths)
        compressed = Shares(whole, lse, lse, lse, None, 0, 1)
        scores = launch_scores(
            *(q, k_cmp, lse, n_blocks, block, stride, block_size, sm_scale, cache_seqlens)
        )
    else:
        compressed, logits = launch_compressed(rows, k_rows, v_rows, sm_scale, lengths)
        scores = launch_scores_of_logits(
            *(logits, compressed, k_cmp.shape[2], b, n_blocks, block, stride, block_size, lengths)
        )
    ranges = launch_top_n(
        *(scores.unsqueeze(1), n_selected, block_size, context - 1 if lengths is None else -1),
        window=window,
        pdl=pdl,
        positions=cache_seqlens,
        last_position=context - 1,
    )
    sets = q.reshape(b, 1, h, group, d).expand(-1, SETS, -1, -1, -1)
    longest = min(max(n_selected * block_size, window), context)
    config = decode_spans_config(SETS * b * h, group, longest, d, v.shape[3], q.dtype, q.device)
    spans = range_shares(
        *(sets, k, v, ranges, sm_scale, longest, config),
        dependent=pdl,
        lengths=cache_seqlens,
        block_table=block_table,
    )
    _merge(out, gates, compressed, spans, h)
    return out


def _merge(
    out: torch.Tensor, gates: torch.Tensor, compressed: Shares, spans: Shares, h: int
) -> None:
    b, hq, dv = out.shape
    group = hq // h
    block_dv = next_power_of_2(dv)

    def shares_at_once(shares: Shares) -> int:
        # A tile of shares takes at most 128 registers of each thread of the one warp.
        return min(next_power_of_2(shares.splits), max(4096 // block_dv, 2))

    pdl = dependent_launch(out.device)
    decode_merge_kernel[(b * h, group)](
        *(out, gates, compressed.out, compressed.part, compressed.plse, compressed.table_or_any),
        *(spans.out, spans.part, spans.plse, spans.table_or_any),
        *(h, group, compressed.splits, spans.splits),
        DV=dv,
        BLOCK_DV=block_dv,
        CMP_BLOCK_S=shares_at_once(compressed) if compressed.splits > 1 else 0,
        CMP_TABLE=compressed.table is not None,
        SPANS_BLOCK_S=shares_at_once(spans) if spans.splits > 1 else 0,
        SETS=SETS,
        PDL=pdl,
        num_warps=1,
        num_stages=1,
        **launch_options(pdl),
    )
