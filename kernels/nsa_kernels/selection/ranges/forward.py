"""The launches of ``selection_ranges``."""

from __future__ import annotations

import torch

from ...jit.compat import PIPELINES_GATHERS
from ...launch.checks import require
from ...launch.config import Config, check_heads
from ...launch.device import dependent_launch
from ...launch.replay import replayed
from ...launch.shares import Shares
from ...launch.sizes import head_dims, scale_log2, strides
from .config import LEAST_SHARE, ranges_config
from .kernels.forward import ranges_kernel
from .spans import check_ranges, kernel_spans


def least_share(block_l: int) -> int:
    """Return the fewest keys of a share: whole tiles, 64 to 128 keys unless a tile is larger."""
    return max(block_l, min(max(2 * block_l, LEAST_SHARE), 2 * LEAST_SHARE))


@replayed
def launch_ranges(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    sm_scale: float | None,
    selected_len: int | None,
    config: Config | None = None,
    lengths: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute ``selection_ranges``. Dtypes, devices and head dims have been checked.

    Spans are clamped to ``lengths`` int32 [B], the number of keys of each entry, at most S_kv. With
    ``block_table`` int32 [B, n], k and v [pages, G, page, ...] are a pool, and page i of an entry
    is block_table[entry, i]. Keys of a page that is not in the pool are not attended to.
    """
    paged = block_table is not None
    ranges = check_ranges(q, k, v, ranges, paged)
    b, s, g, h, d = q.shape
    s_kv, dv = v.shape[2], v.shape[3]
    page = 0
    if block_table is not None:
        page, s_kv = s_kv, s_kv * block_table.shape[1]
    n_spans = ranges.shape[3]
    rows = b * s * g
    if rows == 0:
        return Shares.allocate(q, dv, 1).merged()
    if config is None:
        config = ranges_config(rows, h, n_spans, s_kv, d, dv, selected_len, q.dtype, q.device)
    else:
        check_heads("selection_ranges", config, h)
        require(config.splits >= 1, f"selection_ranges: {config} has no splits")
    shares = Shares.allocate(q, dv, config.splits, table=True)
    given = kernel_spans(ranges, s_kv, lengths)
    pipelined = not given.search_steps and (PIPELINES_GATHERS or not page)
    ranges_kernel[(rows, config.splits, config.head_tiles)](
        *(q, k, v, given.spans, given.before, *shares[:4], shares.table_or_any),
        shares.lse if lengths is None else lengths,
        shares.lse if block_table is None else block_table,
        *strides(q, k, v),
        *given.strides,
        0 if block_table is None else block_table.stride(0),
        *(s, g, h, s_kv, n_spans, k.shape[0] if page else 0, scale_log2(sm_scale, d)),
        **head_dims(d, dv),
        BLOCK_H=config.block_h,
        BLOCK_L=config.block_l,
        SPANS=given.padded,
        SEARCH_STEPS=given.search_steps,
        MIN_SHARE=least_share(config.block_l),
        SPLIT=config.splits > 1,
        LATE=config.late,
        LENGTHS=lengths is not None,
        PAGE=page,
        PDL=config.splits > 1 and dependent_launch(q.device),
        num_warps=config.num_warps,
        # Not pipelined: keys that a search finds and, before Triton 3.2, paged keys.
        num_stages=config.num_stages if pipelined else 1,
    )
    return shares.merged(paged)
