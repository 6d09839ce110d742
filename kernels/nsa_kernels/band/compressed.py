"""``compressed_attention``: the compression branch of NSA (arXiv 2502.11089, section 3.3.1)."""

from __future__ import annotations

from typing import Any

import torch

from ..launch.checks import MAX_TOKENS, check_whole, require, softmax_scale
from ..launch.fakes import band_results
from ..launch.mode import traced
from ..launch.operators import operator
from ..launch.replay import replayed
from .attend import attend, differentiate, save_for_backward
from .checks import check_band, check_cu

OP = "compressed_attention"


def compressed_attention(
    q: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    cu_keys: torch.Tensor | None = None,
    *,
    block: int = 32,
    stride: int = 16,
    sm_scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of query t over the compressed keys whose tokens are all at or before t.

    These are the first max(0, (t + 1 - block) // stride + 1) keys. Differentiable in q, k_cmp and
    v_cmp, through both results; the gradients are deterministic.

    Args:
        q: [B, T, HQ, D], float16, bfloat16 or float32, any strides.
        k_cmp: [B, Nc, H, D], same dtype; HQ is a multiple of H. v_cmp: [B, Nc, H, Dv]. Key i stands
            for the tokens i * stride up to i * stride + block.
        cu_seqlens, cu_keys: int32 [sequences + 1], both or neither; with them B = 1, the sequences
            are packed along T and their compressed keys along Nc. Values of cu_keys outside
            [0, Nc] are clamped on the device.
        block, stride: tokens of a compressed key, and from one to the next.
        sm_scale: positive factor on q.k; 1/sqrt(D) when None.

    Returns:
        out [B, T, HQ, Dv] in q's dtype and lse [B, T, HQ] float32, natural (strides of
        [B, HQ, T]); a query that sees no key gives 0 and -inf.

    Raises:
        TypeError: unsupported or mixed dtypes.
        ValueError: shapes that do not fit together, head dims outside 16..256.
    """
    check_whole(OP, "block", block, 1, MAX_TOKENS)
    check_whole(OP, "stride", stride, 1, MAX_TOKENS)
    scale = softmax_scale(OP, q, sm_scale)
    out, lse = attend_compressed(q, k_cmp, v_cmp, cu_seqlens, cu_keys, block, stride, scale)
    return out, lse.transpose(1, 2)


def attend_compressed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
    block: int,
    stride: int,
    sm_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``compressed_attention``: out and the LSE as kernels have it, [B, HQ, T]."""
    call = _forward if traced(q) else _launch
    out, lse = call(q, k, v, cu_seqlens, cu_keys, block, stride, sm_scale)
    return out, lse


@replayed
def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
    block: int,
    stride: int,
    sm_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_band(OP, q, k, v)
    require((cu_seqlens is None) == (cu_keys is None), f"{OP}: give both cu_seqlens and cu_keys")
    if cu_seqlens is not None and cu_keys is not None:
        check_cu(OP, "cu_seqlens", cu_seqlens, q)
        check_cu(OP, "cu_keys", cu_keys, q)
        require(cu_seqlens.shape == cu_keys.shape, f"{OP}: cu_seqlens and cu_keys differ in length")
    return attend(q, k, v, cu_seqlens, cu_keys, block, stride, 0, sm_scale)


_forward = operator("nsa_kernels::compressed_attention", _launch)


_forward.register_fake(band_results)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *tensors, block, stride, sm_scale = inputs
    save_for_backward(ctx, (*tensors, *output), (block, stride, 0, sm_scale))


def _grads(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    return (*differentiate(OP, ctx, *grads), None, None, None, None, None)


_forward.register_autograd(_grads, setup_context=_setup)
