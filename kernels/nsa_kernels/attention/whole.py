"""``nsa_attention``: the three branches and their gated sum, for prefill and training.

The layer calls ``attend_whole`` if it compresses by an MLP, or for a chunk after cached tokens.
"""

from __future__ import annotations

import torch

from ..band.api import OP as COMPRESSED
from ..band.attend import check_band, check_cu
from ..launch.checks import (
    MAX_BLOCKS,
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
from .behind import run_behind
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
    cu_seqlens_k: torch.Tensor | None = None,
) -> torch.Tensor:
    """Native Sparse Attention with compression by the mean (arXiv 2502.11089, section 3).

    Differentiable in q, k, v and gates, but not in the choice of blocks, nor with cached keys.

    Args:
        q: [B, Tq, HQ, D], float16, bfloat16 or float32. k: [B, T, H, D]. v: [B, T, H, Dv]. HQ is a
            multiple of H, and D and Dv are in 16..256. Tq is at most T: the queries are the last Tq
            tokens. If Tq < T, they are a chunk of a prefill after T - Tq cached keys.
        gates: [B, Tq, HQ, 3], of compression, selection and window, of any floating dtype.
        block, stride: tokens in a compressed key, and tokens from one key to the next.
        block_size: tokens in a selection block: 16, 32, 64 or 128. stride divides this and block.
        n_selected: how many blocks a query selects, three or more: the first, the last two, and
            those with the highest scores (of equal scores, the lowest index).
        window: keys of the window branch, 1 or more.
        sm_scale: positive factor on q.k; 1/sqrt(D) when None.
        cu_seqlens: int32 [sequences + 1], if B = 1 and the sequences are packed along T. Its values
            must not decrease, and are never read on the host. No query attends to another sequence,
            but NaN or infinity in k or v may reach a neighbouring sequence in the same tile.
        cu_seqlens_k: int32 [sequences + 1], where the tokens of each sequence begin in k and v.
            If it is given, cu_seqlens says where the queries of each sequence begin in q. They are
            the last tokens of the sequence.

    Returns:
        [B, Tq, HQ, Dv] in q's dtype; 0 for tokens in no sequence.

    Raises:
        TypeError: dtypes are unsupported or mixed.
        ValueError: sizes do not fit together, or an input requires a gradient although the queries
            are fewer than the tokens or cu_seqlens_k is given.
    """
    attend = _attend if traced(q) else _launch
    sizes = (block, stride, block_size, n_selected, window)
    gates = gates.contiguous()  # a copy in ``_launch`` would prevent replays
    return attend(q, k, v, gates, cu_seqlens, cu_seqlens_k, *sizes, sm_scale)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gates: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float | None,
) -> torch.Tensor:
    check_sizes(OP, block, stride, block_size, n_selected, window)
    _check(q, k, v, gates, packed=cu_seqlens_k is not None)
    scale = softmax_scale(OP, q, sm_scale)
    if cu_seqlens is not None:
        check_cu(OP, "cu_seqlens", cu_seqlens, q)
        cu_seqlens = cu_seqlens.contiguous()
    behind = q.shape[1] != k.shape[1]
    cu_tokens = cu_seqlens
    if cu_seqlens_k is not None:
        require(
            cu_seqlens is not None,
            f"{OP}: cu_seqlens_k needs cu_seqlens, where the queries of each sequence begin",
        )
        assert cu_seqlens is not None
        check_cu(OP, "cu_seqlens_k", cu_seqlens_k, q)
        require(
            cu_seqlens.shape == cu_seqlens_k.shape,
            f"{OP}: cu_seqlens and cu_seqlens_k differ in length",
        )
        behind, cu_tokens = True, cu_seqlens_k.contiguous()
    require(
        not behind or cu_seqlens is None or cu_seqlens_k is not None,
        f"{OP}: q has {q.shape[1]} tokens and k {k.shape[1]}; packed sequences of queries behind "
        "cached keys need cu_seqlens_k",
    )
    cu_keys = None
    if cu_tokens is not None:
        cu_keys = key_offsets(cu_tokens, k.shape[1], block, stride)
    means = means_of_blocks(k, v, block, stride, cu_tokens, cu_keys)
    sizes = Sizes(block, stride, block_size, n_selected, window, scale)
    if behind:
        return run_behind((q, k, v, *means, gates), cu_seqlens, cu_tokens, cu_keys, sizes)
    return run_whole((q, k, v, *means, gates), cu_seqlens, cu_keys, sizes)


_launch = replayed(_attend)


def attend_whole(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    **sizes: int,
) -> torch.Tensor:
    """``nsa_attention`` on compressed keys k_cmp [B,Nc,H,D] and v_cmp that the caller has made."""
    _check(q, k, v, gates, packed=False)
    check_band(COMPRESSED, q, k_cmp, v_cmp)
    numbers = Sizes(**sizes, sm_scale=softmax_scale(OP, q, None))
    tensors = (q, k, v, k_cmp, v_cmp, gates.contiguous())
    if q.shape[1] < k.shape[1]:
        return run_behind(tensors, None, None, None, numbers)
    return run_whole(tensors, None, None, numbers)


def _check(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor, packed: bool
) -> None:
    """Check what the branches do not check themselves."""
    require(
        q.dim() == k.dim() == v.dim() == 4
        and (packed or q.shape[1] <= k.shape[1])
        and k.shape[1] == v.shape[1]
        and k.device == v.device == q.device
        and k.is_floating_point()
        and v.is_floating_point(),
        f"{OP}: expected q [B,Tq,HQ,D], k [B,T,H,D], v [B,T,H,Dv] of floats on one device, and "
        f"Tq <= T; "
        f"got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)} on {q.device}, {k.device}, "
        f"{v.device}",
    )
    check_band(COMPRESSED, q, k, v)
    check_transforms(COMPRESSED, gates)
    tokens = q.shape[0] * max(q.shape[1], k.shape[1])
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
    """Raise ValueError unless the sizes of the branches fit together."""
    for name, size in (("block_size", block_size), ("window", window)):
        check_whole(op, name, size, 1)
    check_whole(op, "n_selected", n_selected, 1, MAX_BLOCKS)
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
