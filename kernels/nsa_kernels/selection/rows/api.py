"""``selection_rows``: one span of keys per row, which the row's heads share.

``rows_group_kernel`` takes up to 64 heads of a row (16 in float32) in one program, so each key is
read once for these. If there are too few rows to fill the device, the span is split into shares,
one for each program, and a second launch merges them. See docs/explanation/kernels/rows.md.
"""

from __future__ import annotations

import torch

from ...launch.checks import check_no_backward, check_no_config, check_qkv, check_scale
from ...launch.config import Config, check_chunks, check_heads
from ...launch.device import dependent_launch
from ...launch.mode import traced
from ...launch.operators import operator, rows_results
from ...launch.replay import replayed
from ...launch.shares import Shares
from ...launch.sizes import head_dims, scale_log2, strides
from .config import rows_config
from .kernels import rows_group_kernel, rows_per_head_kernel


def check_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sm_scale: float | None) -> None:
    """Raise TypeError or ValueError for arguments that ``selection_rows`` does not take."""
    check_qkv("selection_rows", q, k, v)
    check_scale("selection_rows", sm_scale)
    check_no_backward("selection_rows", q, k, v)
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


def selection_rows(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    sm_scale: float | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with each row's H queries to that row's own L keys.

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
        TypeError: dtypes are unsupported or mixed.
        ValueError: shapes do not fit together, head dims are outside 16..256, a device is wrong, an
            input requires a gradient, or the config is for other shapes.
    """
    if traced(q):
        check_no_config("selection_rows", config)
        check_rows(q, k, v, sm_scale)
        out, lse = _operator(q, k, v, sm_scale)
        return out, lse
    return _launch(q, k, v, sm_scale, config)


@replayed
def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sm_scale: float | None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_rows(q, k, v, sm_scale)
    return row_shares(q, k, v, sm_scale, config).merged()


@operator("nsa_kernels::selection_rows", fake=rows_results)
def _operator(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sm_scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    return _launch(q, k, v, sm_scale)


def row_shares(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sm_scale: float | None,
    config: Config | None = None,
) -> Shares:
    """Make the first launch of ``selection_rows``. The inputs have been checked."""
    n, h, d = q.shape
    length, dv = v.shape[1], v.shape[2]
    if n == 0:
        return Shares.allocate(q, dv, 1)
    if config is None:
        config = rows_config(n, h, length, d, dv, q.dtype, q.device)
    else:
        check_heads("selection_rows", config, h)
        check_chunks("selection_rows", config.splits, config.chunk, config.block_l, length)
    shares = Shares.allocate(q, dv, config.splits)
    rows_group_kernel[(n, config.splits, config.head_tiles)](
        *(q, k, v, *shares[:4]),
        *strides(q, k, v),
        *(h, length, config.chunk, scale_log2(sm_scale, d)),
        **head_dims(d, dv),
        BLOCK_H=config.block_h,
        BLOCK_L=config.block_l,
        SPLIT=config.splits > 1,
        ONE_TILE=length > 0 and config.chunk <= config.block_l,
        MASKED=length % config.block_l != 0,
        LATE=config.late,
        PDL=config.splits > 1 and dependent_launch(q.device),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return shares


def selection_rows_per_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute ``selection_rows`` with one program for each head, for comparison."""
    if traced(q):
        check_rows(q, k, v, sm_scale)
        out, lse = _per_head_operator(q, k, v, sm_scale)
        return out, lse
    return _launch_per_head(q, k, v, sm_scale)


@replayed
def _launch_per_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sm_scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    check_rows(q, k, v, sm_scale)
    n, h, d = q.shape
    length, dv = v.shape[1], v.shape[2]
    out = torch.empty((n, h, dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((n, h), dtype=torch.float32, device=q.device)
    if n == 0:
        return out, lse
    rows_per_head_kernel[(n, h)](
        *(q, k, v, out, lse),
        *strides(q, k, v),
        *(h, length, scale_log2(sm_scale, d)),
        **head_dims(d, dv),
        BLOCK_L=32,
        num_warps=4,
        num_stages=2,
    )
    return out, lse


_per_head_operator = operator(
    "nsa_kernels::selection_rows_per_head", _launch_per_head, rows_results
)
