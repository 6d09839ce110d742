"""NSA attention for queries that are the last tokens of their sequences: a chunk of a prefill after
cached keys. It has no backward.

Tables say which compressed keys and which keys of the window a query sees, as for packed sequences.
The blocks that a query chose are read as spans of keys, query by query.
"""

from __future__ import annotations

from dataclasses import astuple

import torch

from ..band.forward import band_forward
from ..band.geometry import Behind, band_behind
from ..launch.checks import require
from ..launch.mode import traced
from ..launch.operators import operator, result_like_q
from ..launch.replay import replayed
from ..scoring.block_scores import block_scores
from ..scoring.top_n import launch_top_n
from ..selection.ranges.forward import launch_ranges
from .branches import launch_sum
from .launches import Sizes

OP = "nsa_attention"


def run_behind(
    tensors: tuple[torch.Tensor, ...],
    cu_seqlens: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
    sizes: Sizes,
) -> torch.Tensor:
    """Return the gated sum [B, Tq, HQ, Dv] for the queries q [B, Tq, HQ, D] of the last Tq tokens.

    Args:
        cu_seqlens, cu_seqlens_k, cu_keys: int32 [sequences + 1], or None for all three. They say
            where the queries, the tokens and the compressed keys of each packed sequence begin.

    Raises:
        ValueError: an input requires a gradient.
    """
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    remedy = "with q, k and v of the same tokens"
    if cu_seqlens is not None:
        remedy += ": leave out cu_seqlens_k"
    require(
        not wanted,
        f"{OP}: queries behind cached keys have no backward and an input requires a gradient; call "
        f"it under torch.no_grad(), or {remedy}",
    )
    attend = _operator if traced(tensors[0]) else _launch
    arguments = (*tensors, cu_seqlens, cu_seqlens_k, cu_keys, *astuple(sizes))
    out: torch.Tensor = attend(*arguments)
    return out


@replayed
def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float,
) -> torch.Tensor:
    if q.numel() == 0:
        return q.new_empty((*q.shape[:3], v.shape[3]))
    tokens = k.shape[1]
    behind = Behind(tokens - q.shape[1], cu_seqlens, cu_seqlens_k)
    of_keys = band_behind(q, k_cmp.shape[1], behind, cu_keys, block, stride, 0)
    of_window = band_behind(q, tokens, behind, cu_seqlens_k, 1, 1, min(window, tokens))
    compressed, lse = band_forward(q, k_cmp, v_cmp, of_keys, sm_scale)
    scores = block_scores(
        *(q, k_cmp, lse, of_keys, block_size, sm_scale, cu_seqlens, cu_keys),
        visible=True,
        behind=behind,
        tokens=tokens,
    )
    first = behind.first if cu_seqlens is None else 0
    spans = launch_top_n(
        *(scores, n_selected, block_size, first), cu_seqlens=cu_seqlens, cu_tokens=cu_seqlens_k
    )
    near, _ = band_forward(q, k, v, of_window, sm_scale)
    selected, _ = launch_ranges(
        *(q.unflatten(2, (k.shape[2], -1)), k.transpose(1, 2), v.transpose(1, 2), spans, sm_scale),
        min(n_selected * block_size, tokens),
    )
    return launch_sum(compressed, selected.flatten(2, 3), near, gates.contiguous())


_operator = operator("nsa_kernels::attend_behind", _launch, result_like_q)
