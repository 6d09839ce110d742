"""``decode_step``: one decoded token of NSA against its caches, three branches and their gated sum.

Nothing is read back on the host.
"""

from __future__ import annotations

import torch

from ...launch.checks import (
    MAX_BLOCKS,
    check_no_backward,
    check_qkv,
    check_strides,
    check_transforms,
    check_whole,
    require,
    softmax_scale,
)
from ...launch.mode import traced
from ...launch.replay import replayed
from ...scoring.top_n import LOCAL_BLOCKS
from .branches import check_groups
from .step import launch_step


def _check_step(
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
) -> None:
    """What the operator says itself, where shapes may be symbols."""
    check_qkv("decode_step", q, k_cmp, v_cmp)
    require(
        q.dim() == 3
        and q.shape[1] >= 1
        and all(x.dim() == 4 and x.shape[0] == q.shape[0] for x in (k, v, k_cmp, v_cmp))
        and k.shape[:3] == v.shape[:3]
        and k_cmp.shape[:3] == v_cmp.shape[:3]
        and k.shape[1] == k_cmp.shape[1]
        and v.shape[3] == v_cmp.shape[3]
        and 1 <= k.shape[2] < 2**30
        and gates.shape == (*q.shape[:2], 3)
        and gates.device == q.device,
        "decode_step: expected q [B,HQ,D], caches k [B,H,S,D] and v [B,H,S,Dv] of at least one "
        "token, k_cmp [B,H,Nc,D], v_cmp [B,H,Nc,Dv] and gates [B,HQ,3] on one device; got "
        f"{', '.join(str(tuple(x.shape)) for x in (q, k, v, k_cmp, v_cmp, gates))}",
    )
    check_groups("decode_step", q.shape[1], k.shape[1])
    require(
        n_selected > LOCAL_BLOCKS,
        f"decode_step: n_selected must be over the {LOCAL_BLOCKS} local blocks; got {n_selected}",
    )


def decode_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    *,
    block: int = 32,
    stride: int = 16,
    block_size: int = 64,
    n_selected: int = 16,
    window: int = 512,
    sm_scale: float | None = None,
) -> torch.Tensor:
    """Native sparse attention of one token, the last of its cache (arXiv 2502.11089, section 3).

    Args:
        q: [B, HQ, D], float16, bfloat16 or float32.
        k, v: caches [B, H, S, D] and [B, H, S, Dv], the token's own key and value at S - 1.
        k_cmp, v_cmp: compressed keys and values that are complete, [B, H, Nc, D] and
            [B, H, Nc, Dv]; Nc may be 0.
        gates: [B, HQ, 3], of compression, selection, window.
        n_selected: blocks of ``block_size`` tokens that selection takes: the first, the last two,
            and those of the highest scores.
        The others: as the branches.

    Returns:
        out [B, HQ, Dv] in q's dtype.

    Raises:
        TypeError, ValueError: as the branches; an input that requires a gradient.
    """
    attend = _checked_step if traced(q) else _launch
    return attend(
        q, k, v, k_cmp, v_cmp, gates, block, stride, block_size, n_selected, window, sm_scale
    )


def _checked_step(
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
    sm_scale: float | None,
) -> torch.Tensor:
    check_qkv("decode_step", q, k, v)
    check_transforms("decode_step", k_cmp, v_cmp, gates)
    check_no_backward("decode_step", q, k, v, k_cmp, v_cmp, gates)
    check_whole("decode_step", "window", window, 1)
    check_whole("decode_step", "n_selected", n_selected, 1, MAX_BLOCKS)
    check_strides("decode_step", block, stride, block_size)
    scale = softmax_scale("decode_step", q, sm_scale)
    step = _operator if traced(q) else _step
    out: torch.Tensor = step(
        q, k, v, k_cmp, v_cmp, gates, block, stride, block_size, n_selected, window, scale
    )
    return out


_launch = replayed(_checked_step)


def _step(
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
    _check_step(q, k, v, k_cmp, v_cmp, gates, block, stride, block_size, n_selected, window)
    # Beyond int32, what kernels add to a window would wrap round.
    window = min(window, k.shape[2])
    return launch_step(
        q, k, v, k_cmp, v_cmp, gates, block, stride, block_size, n_selected, window, sm_scale
    )


_operator = torch.library.custom_op("nsa_kernels::decode_step", _step, mutates_args=())


@_operator.register_fake
def _(
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
    return q.new_empty((*q.shape[:2], v.shape[3]))
