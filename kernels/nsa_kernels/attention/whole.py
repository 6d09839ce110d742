"""``nsa_attention``: the three branches and their gated sum, prefill and training.

``attend_whole`` is what the layer has of it, whose compression may be another than the mean.
"""

from __future__ import annotations

import torch

from ..band.checks import check_band, check_cu
from ..band.compressed import OP as COMPRESSED
from ..launch.checks import (
    MAX_TOKENS,
    check_strides,
    check_transforms,
    check_whole,
    require,
    softmax_scale,
)
from ..launch.mode import traced
from ..launch.replay import replayed
from ..scoring.top_n import LOCAL_BLOCKS
from ..selection.blocks.checks import BLOCK_SIZES
from .launches import Sizes
from .means import key_offsets, means_of_blocks
from .operator import OP, run_whole


def nsa_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gates: torch.Tensor,
    *,
    block: int = 32,
    stride: int = 16,
    block_size: int = 64,
    n_selected: int = 16,
    window: int = 512,
    sm_scale: float | None = None,
    cu_seqlens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Native Sparse Attention with compression by the mean (arXiv 2502.11089, section 3).

    Differentiable in q, k, v and gates; the choice of blocks is not.

    Args:
        q: [B, T, HQ, D], float16, bfloat16 or float32. k: [B, T, H, D]. v: [B, T, H, Dv]. HQ is a
            multiple of H, D and Dv in 16..256.
        gates: [B, T, HQ, 3], of compression, selection and window, of any floating dtype.
        block, stride: tokens of a compressed key, and from one to the next.
        block_size: tokens of a selection block: 16, 32, 64 or 128, a multiple of ``stride``, as
            ``block`` is.
        n_selected: blocks a query selects, three or more: the first, the last two, and the highest
            scores, the lowest index where scores are equal.
        window: keys of the window branch, 1 or more.
        sm_scale: positive factor on q.k; 1/sqrt(D) when None.
        cu_seqlens: int32 [sequences + 1]; with it, B = 1 and the sequences are packed along T. It
            must not decrease. Its values are never read on the host.

    Returns:
        [B, T, HQ, Dv] in q's dtype; 0 for tokens in no sequence.

    Raises:
        TypeError: unsupported or mixed dtypes.
        ValueError: sizes that do not fit together.
    """
    attend = _attend if traced(q) else _launch
    sizes = (block, stride, block_size, n_selected, window)
    return attend(q, k, v, gates, cu_seqlens, *sizes, sm_scale)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gates: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float | None,
) -> torch.Tensor:
    check_sizes(OP, block, stride, block_size, n_selected, window)
    _check(q, k, v, gates)
    scale = softmax_scale(OP, q, sm_scale)
    cu_keys = None
    if cu_seqlens is not None:
        check_cu(OP, "cu_seqlens", cu_seqlens, q)
        cu_seqlens = cu_seqlens.contiguous()
        cu_keys = key_offsets(cu_seqlens, q.shape[1], block, stride)
    means = means_of_blocks(k, v, block, stride, cu_seqlens, cu_keys)
    sizes = Sizes(block, stride, block_size, n_selected, window, scale)
    return run_whole((q, k, v, *means, gates), cu_seqlens, cu_keys, sizes)


_launch = replayed(_attend)


def attend_whole(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    *,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
) -> torch.Tensor:
    """``nsa_attention`` on compressed keys k_cmp [B,Nc,H,D] and v_cmp that the caller has made."""
    _check(q, k, v, gates)
    check_band(COMPRESSED, q, k_cmp, v_cmp)
    scale = softmax_scale(OP, q, None)
    sizes = Sizes(block, stride, block_size, n_selected, window, scale)
    return run_whole((q, k, v, k_cmp, v_cmp, gates), None, None, sizes)


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor) -> None:
    """What the parts could not say of their own arguments."""
    require(
        q.dim() == k.dim() == v.dim() == 4
        and q.shape[1] == k.shape[1] == v.shape[1]
        and k.device == v.device == q.device
        and k.is_floating_point()
        and v.is_floating_point(),
        f"{OP}: expected q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv] of numbers on one device; "
        f"got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)} on {q.device}, {k.device}, "
        f"{v.device}",
    )
    check_band(COMPRESSED, q, k, v)
    check_transforms(COMPRESSED, gates)
    tokens = q.shape[0] * q.shape[1]
    require(q.shape[2] >= 1, f"{OP}: expected at least one query head; got {tuple(q.shape)}")
    require(tokens < MAX_TOKENS, f"{OP}: {tokens} tokens are more than int32 positions can count")
    require(
        gates.shape == (*q.shape[:3], 3) and gates.is_floating_point() and gates.device == q.device,
        f"{OP}: expected gates {[*q.shape[:3], 3]} on q's device; got {gates.dtype} "
        f"{tuple(gates.shape)} on {gates.device}",
    )


def check_sizes(
    op: str, block: int, stride: int, block_size: int, n_selected: int, window: int
) -> None:
    """Raises ValueError unless the sizes of the branches fit together."""
    for name, size in (
        ("block_size", block_size),
        ("n_selected", n_selected),
        ("window", window),
    ):
        check_whole(op, name, size, 1)
    check_strides(op, block, stride, block_size)
    require(
        block_size in BLOCK_SIZES,
        f"{op}: block_size must be one of {BLOCK_SIZES}; got {block_size}",
    )
    require(
        n_selected > LOCAL_BLOCKS,
        f"{op}: n_selected must be over {LOCAL_BLOCKS}, for the first block and the "
        f"last {LOCAL_BLOCKS}; got {n_selected}",
    )
