"""``selection_varlen``: rows of unequal length, packed one after the other.

The launch must not depend on the lengths (no host synchronisation), and one long row must not hold
up the others. So the packed keys are cut into work items of at most ``chunk`` keys. The first item
of row ``n`` is number ``cu_seqlens[n] // chunk + n``, after all items of the row before. Every row
has at least ``ceil(len / chunk)`` items, and there are at most ``N + total // chunk`` items. To
find its row, a program counts the rows whose first item is at or before its own item. If the caller
knows that no row is much longer than the others, and there are many rows, a program takes a whole
row, without search or merge.
"""

from __future__ import annotations

import torch

from ...launch.checks import (
    check_int32,
    check_no_backward,
    check_no_config,
    check_qkv,
    check_scale,
    check_whole,
    require,
)
from ...launch.config import Config, check_heads
from ...launch.device import dependent_launch
from ...launch.mode import traced
from ...launch.operators import operator, rows_results
from ...launch.replay import replayed
from ...launch.shares import Shares
from ...launch.sizes import cdiv, head_dims, next_power_of_2, scale_log2, strides
from .config import varlen_config
from .kernels import varlen_kernel

ROWS_A_BLOCK = 1024
"""The search for a row compares every 1,024th row, and then the rows between two of these."""


def selection_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    *,
    sm_scale: float | None = None,
    max_seqlen: int | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with each row's H queries to that row's slice of the packed keys.

    Args:
        q: [N, H, D], float16, bfloat16 or float32, any strides.
        k: [total, D], same dtype, any strides.
        v: [total, Dv], same dtype, any strides.
        cu_seqlens: int32 [N + 1] on the same device, non-decreasing, each at most total. Row n has
            the keys cu_seqlens[n] to cu_seqlens[n + 1] - 1. The values are never read on the host.
            Values outside [0, total] are clamped on the device. If the values decrease, no memory
            out of bounds is accessed, but the results are undefined.
        sm_scale: factor on q.k; 1/sqrt(D) when None.
        max_seqlen: upper bound of the lengths, if the caller knows one. It is only a hint for how
            rows are split: results are right even if it is too small.
        config: launch configuration; chosen from the shapes when None.

    Returns:
        out [N, H, Dv] in q's dtype and lse [N, H] float32 (natural log), both contiguous; an
        empty row gives out = 0, lse = -inf.

    Raises:
        TypeError: dtypes are unsupported or mixed, or cu_seqlens is not int32.
        ValueError: shapes do not fit together, head dims are outside 16..256, a device is wrong, an
            input requires a gradient, or the config is for other shapes.
    """
    if not traced(q):
        return _launch(q, k, v, cu_seqlens, sm_scale, max_seqlen, config)
    check_no_config("selection_varlen", config)
    check_no_backward("selection_varlen", q, k, v)
    out, lse = _operator(q, k, v, cu_seqlens, sm_scale, max_seqlen)
    return out, lse


@replayed
def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    sm_scale: float | None,
    max_seqlen: int | None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_qkv("selection_varlen", q, k, v)
    check_scale("selection_varlen", sm_scale)
    check_no_backward("selection_varlen", q, k, v)
    check_int32("selection_varlen", "cu_seqlens", cu_seqlens)
    if max_seqlen is not None:
        check_whole("selection_varlen", "max_seqlen", max_seqlen, 0)
    if not (
        q.dim() == 3
        and k.dim() == v.dim() == 2
        and k.shape[0] == v.shape[0]
        and cu_seqlens.shape == (q.shape[0] + 1,)
        and q.shape[1] >= 1
    ):
        raise ValueError(
            "selection_varlen: expected q [N,H,D], k [total,D], v [total,Dv], cu_seqlens [N+1] "
            f"with H >= 1; got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}, "
            f"{tuple(cu_seqlens.shape)}"
        )
    if cu_seqlens.device != q.device:
        raise ValueError(f"selection_varlen: cu_seqlens is on {cu_seqlens.device}, q on {q.device}")
    n, h, d = q.shape
    total, dv = v.shape
    if total >= 2**31:
        raise ValueError(f"selection_varlen: int32 cu_seqlens cannot address {total} keys")
    if n == 0:
        return Shares.allocate(q, dv, 1).merged()
    if config is None:
        config = varlen_config(n, h, total, d, dv, max_seqlen, q.dtype, q.device)
    else:
        check_heads("selection_varlen", config, h)
        require(
            config.splits == 1 or config.chunk >= 1,
            f"selection_varlen: {config} has work items without keys; chunk must be at least 1",
        )
    whole = config.splits == 1
    items = n if whole else n + total // config.chunk
    split = not whole and total > config.chunk
    splits = min(total // config.chunk + 1, 16) if split else 1
    shares = Shares.allocate(q, dv, splits, slots=items, table=True)
    varlen_kernel[(items, config.head_tiles)](
        *(q, k, v, cu_seqlens, *shares[:4], shares.table_or_any),
        *strides(q, k, v),
        *(n, h, total, config.chunk, scale_log2(sm_scale, d)),
        **head_dims(d, dv),
        BLOCK_H=config.block_h,
        BLOCK_L=config.block_l,
        BLOCK_N=min(max(next_power_of_2(n), 16), ROWS_A_BLOCK),
        COARSE=next_power_of_2(cdiv(n, ROWS_A_BLOCK)),
        SPLIT=split,
        WHOLE=whole,
        LATE=config.late,
        PDL=split and dependent_launch(q.device),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return shares.merged()


@operator("nsa_kernels::selection_varlen", fake=rows_results)
def _operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    sm_scale: float | None,
    max_seqlen: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _launch(q, k, v, cu_seqlens, sm_scale, max_seqlen)
