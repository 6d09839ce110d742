"""Look up the launch configuration of ``selection_rows``, ``_varlen`` or ``_ranges``."""

from __future__ import annotations

import torch

from ..launch.config import Config
from .ranges.config import ranges_config
from .rows.config import rows_config
from .varlen.config import varlen_config


def chosen_config(
    op: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    extra: torch.Tensor | None = None,
    *,
    longest: int | None = None,
) -> Config:
    """Return the configuration with which ``op`` would be launched, to record it or to pass it on.

    Args:
        op: "selection_rows", "selection_varlen" or "selection_ranges".
        q, k, v: as the op takes them.
        extra: cu_seqlens or ranges, for the ops that take one.
        longest: the op's max_seqlen or selected_len.

    Raises:
        ValueError: an unknown op, or "selection_ranges" without ``extra``.
    """
    d, dv = q.shape[-1], v.shape[-1]
    if op == "selection_rows":
        return rows_config(q.shape[0], q.shape[1], k.shape[1], d, dv, q.dtype, q.device)
    if op == "selection_varlen":
        n, h, total = q.shape[0], q.shape[1], k.shape[0]
        return varlen_config(n, h, total, d, dv, longest, q.dtype, q.device)
    if op == "selection_ranges" and extra is not None:
        b, s, g, h, _ = q.shape
        spans, s_kv = extra.shape[-2], k.shape[2]
        return ranges_config(b * s * g, h, spans, s_kv, d, dv, longest, q.dtype, q.device)
    raise ValueError(
        f"chosen_config: op {op!r} is unknown; pass selection_rows, selection_varlen, or "
        "selection_ranges with its ranges as extra"
    )
