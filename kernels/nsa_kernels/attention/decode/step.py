"""The launches of a decode step. At short contexts, launches take most of the time.

1. Attend to the compressed keys, in shares, and keep sums of weights for each block.
2. Compute block scores from these sums and the LSEs of the shares.
3. Select blocks.
4. Attend to the selected blocks and to the window, in shares.
5. Merge the shares of the three branches, and add up the gated sum.

With few blocks, programs of launch 4 usually do the work of launches 2 and 3 themselves. On sm_90
and later, each launch starts its programs while the launch before still runs, and the programs of
the window wait for nothing. If a tile of launch 1 cannot hold a block, launch 1 keeps no sums and a
merge follows it, and launch 2 reads the keys again.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ...jit.compat import PIPELINES_GATHERS
from ...launch.checks import (
    MAX_BLOCKS,
    check_block_table,
    check_lengths,
    check_no_backward,
    check_qkv,
    check_room,
    check_scale,
    check_strides,
    check_transforms,
    check_whole,
    require,
)
from ...launch.config import Config, fit_tile
from ...launch.device import dependent_launch, device_limits, launch_options
from ...launch.sizes import cdiv, head_dims, next_power_of_2, scale_log2, strides
from ...scoring.top_n import LOCAL_BLOCKS, launch_top_n
from .branches import check_groups, decode_compressed, decode_scores
from .compressed import (
    MOST_SHARES,
    allocate_parts,
    compressed_config,
    launch_compressed,
    launch_scores_of_sums,
)
from .kernels.gated_sum import decode_merge_kernel
from .kernels.spans import decode_spans_kernel

FEW = 256
"""The most blocks among which each program of launch 4 chooses itself."""


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
    window: int,
) -> int:
    """Check the arguments, and return the capacity of a cache entry in tokens."""
    check_qkv("decode_step", q, k, v)
    check_qkv("decode_step", q, k_cmp, v_cmp)
    check_transforms("decode_step", gates)
    check_no_backward("decode_step", q, k, v, k_cmp, v_cmp, gates)
    check_whole("decode_step", "window", window, 1)
    check_whole("decode_step", "n_selected", n_selected, 1, MAX_BLOCKS)
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
def spans_config(
    rows: int, h: int, keys: int, d: int, dv: int, dtype: torch.dtype, device: torch.device
) -> Config:
    """Return the configuration of ``decode_spans_kernel``, for rows of ``keys`` keys, in chosen
    blocks and in the window. Few rows are split, into three programs for each multiprocessor."""
    limits = device_limits(device)
    block_h, block_l, warps, stages = fit_tile(h, d, dv, dtype.itemsize, limits, (64, 4, 3))
    head_tiles = cdiv(h, block_h)
    shares = max(1, min(3 * limits.processors // (rows * head_tiles), MOST_SHARES))
    chunk = cdiv(cdiv(keys, shares), block_l) * block_l
    late = rows * shares * head_tiles <= 4 * limits.processors
    return Config(block_h, block_l, shares, chunk, head_tiles, warps, stages, late)


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
    sm_scale: float | None,
) -> torch.Tensor:
    """Check the arguments of ``decode_step``, and make the launches."""
    check_strides("decode_step", block, stride, block_size)
    context = _check(q, k, v, k_cmp, v_cmp, gates, cache_seqlens, block_table, n_selected, window)
    check_scale("decode_step", sm_scale)
    if cache_seqlens is not None:
        cache_seqlens = cache_seqlens.contiguous()
    b, hq, d = q.shape
    h = k.shape[1]
    group = hq // h
    gates = gates.contiguous()
    out = torch.empty((b, hq, v.shape[3]), dtype=q.dtype, device=q.device)
    if out.numel() == 0:
        return out
    rows = q.reshape(b * h, group, d)
    if cache_seqlens is not None:
        # A length above ``context`` counts as ``context``, so drop the keys that end after it.
        keys = max(0, (context - block) // stride + 1)
        k_cmp, v_cmp = k_cmp[:, :, :keys], v_cmp[:, :, :keys]
    k_rows, v_rows = k_cmp.flatten(0, 1), v_cmp.flatten(0, 1)
    length, dv = v_rows.shape[1:]
    reach, span = block // stride, block_size // stride
    shape = (d, dv, q.dtype, q.device)
    n_blocks = cdiv(cdiv(context, block_size), 16) * 16
    # A larger window could overflow int32 in kernels.
    window, selected = min(window, context), min(n_selected, cdiv(context, block_size)) * block_size
    config = spans_config(b * h, group, selected + window, *shape)
    of_keys = compressed_config(b * h, group, length, span, *shape)
    # A key counts in its own block, and in later ones that it reaches into.
    of_block = 1 + cdiv(reach - 1, span)
    sums = scores = chosen = None
    last = context - 1
    if of_keys.chunk:
        part, plse = allocate_parts(rows, dv, of_keys.splits)
        sums = torch.empty((b * h, n_blocks, of_block, group), dtype=torch.float32, device=q.device)
        launch_compressed(
            *(rows, k_rows, v_rows, sm_scale, cache_seqlens, reach, span, stride, of_keys),
            *(part, plse, sums),
        )
        if n_blocks > FEW or block_size % config.block_l:
            scores = launch_scores_of_sums(
                *(sums, plse, length, b, reach, span, stride, cache_seqlens)
            )
    else:
        sizes: dict[str, Any] = {"block": block, "stride": stride, "sm_scale": sm_scale}
        out_cmp, lse = decode_compressed(q, k_cmp, v_cmp, cache_seqlens, **sizes)
        sizes["block_size"] = block_size
        scores = decode_scores(q, k_cmp, lse, n_blocks, cache_seqlens, **sizes)
        part, plse = out_cmp.view(b * h, 1, group, dv), lse.view(b * h, 1, group)
    pdl = dependent_launch(q.device)
    if scores is not None:
        chosen = launch_top_n(
            *(scores.unsqueeze(1), n_selected, block_size, last if cache_seqlens is None else -1),
            pdl=pdl,
            spans=False,
            positions=cache_seqlens,
            last_position=last,
        )
    near = cdiv(window, config.chunk)
    parts = allocate_parts(rows, dv, near + cdiv(selected, config.chunk))
    page = 0 if block_table is None else k.shape[2]
    decode_spans_kernel[(b * h, parts[1].shape[1], config.head_tiles)](
        *(q, k, v, plse if chosen is None else chosen, plse if sums is None else sums, plse),
        *parts,
        plse if cache_seqlens is None else cache_seqlens,
        plse if block_table is None else block_table,
        *strides(q, k, v),
        0 if block_table is None else block_table.stride(0),
        *(h, group, context, k.shape[0] if page else 0, window, near, config.chunk),
        *(length, n_blocks, plse.shape[1], scale_log2(sm_scale, d)),
        COUNT=n_selected,
        SIZE=block_size,
        **head_dims(d, dv),
        BLOCK_H=config.block_h,
        BLOCK_L=config.block_l,
        LATE=config.late,
        LENGTHS=cache_seqlens is not None,
        PAGE=page,
        BLOCKS=max(128, next_power_of_2(n_blocks)) if chosen is None else 0,
        REACH=reach,
        SPAN=span,
        SUMS=of_block,
        BLOCK_C=next_power_of_2(of_block * group),
        BLOCK_S=max(16, next_power_of_2(plse.shape[1])) if chosen is None else 1,
        LOCAL=LOCAL_BLOCKS,
        PDL=pdl,
        num_warps=config.num_warps,
        # Before Triton 3.2, loads of keys at loaded places are not pipelined.
        num_stages=config.num_stages if PIPELINES_GATHERS else 1,
        **launch_options(pdl),
    )
    shares = plse.shape[1], parts[1].shape[1]
    padded = [max(8, next_power_of_2(x)) for x in shares]
    decode_merge_kernel[(b * h, group)](
        *(out, gates, part, plse, *parts, group, shares[0], near, shares[1]),
        DV=dv,
        BLOCK_DV=next_power_of_2(dv),
        CMP_BLOCK_S=padded[0],
        SPANS_BLOCK_S=padded[1],
        PDL=pdl,
        # The tiles of shares take at most 192 registers of each thread.
        num_warps=next_power_of_2(cdiv(sum(padded) * next_power_of_2(dv), 6144)),
        num_stages=1,
        **launch_options(pdl),
    )
    return out
