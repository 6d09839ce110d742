"""Differentiable means of overlapping blocks of tokens, for keys and values in one launch.

They are the compressed keys and values of NSA (arXiv 2502.11089, section 3.3.1), with a mean
instead of an MLP. The bounds of packed sequences are read on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..band.api import OP
from ..launch.checks import check_device, check_first_derivative, check_transforms
from ..launch.mode import traced
from ..launch.operators import Differentiable, operator
from ..launch.replay import replayed
from ..launch.sizes import batches, cdiv, head_dims, next_power_of_2, strides
from .kernels.compression import compress_backward_kernel, compress_kernel, key_offsets_kernel

UNROLL = 8
"""How many tokens of a block are loaded at once."""


def keys_of(tokens: int, block: int, stride: int, packed: bool) -> int:
    """Return the number of compressed keys of ``tokens`` tokens; if packed, an upper bound."""
    if packed:
        return tokens // stride
    return (tokens - block) // stride + 1 if tokens >= block else 0


def means_of_blocks(
    k: torch.Tensor,
    v: torch.Tensor,
    block: int,
    stride: int,
    cu_seqlens: torch.Tensor | None = None,
    cu_keys: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the means of blocks of k [B, T, H, D] and v [B, T, H, Dv], computed in float32: k_cmp
    [B, N, H, D] and v_cmp [B, N, H, Dv].

    Args:
        k, v: float16, bfloat16 or float32, any strides; v may have no heads.
        block, stride: tokens in a compressed key, and tokens from one key to the next.
        cu_seqlens: int32 [sequences + 1], if sequences are packed and B = 1. cu_keys: the
            ``key_offsets`` of cu_seqlens. With packed sequences, N = T // stride, ``stride`` must
            divide ``block``, and rows after the keys of all sequences are 0.
    """
    check_transforms(OP, k, v)
    k_cmp, v_cmp = _means(k, v, block, stride, cu_seqlens, cu_keys)
    return k_cmp, v_cmp


@replayed
def _launch_key_offsets(
    cu_seqlens: torch.Tensor, tokens: int, block: int, stride: int
) -> torch.Tensor:
    cu_keys = torch.empty(cu_seqlens.shape, dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    sequences = cu_seqlens.shape[0] - 1
    key_offsets_kernel[(1,)](
        *(cu_seqlens.contiguous(), cu_keys, sequences, tokens),
        LENGTH=block,
        STRIDE=stride,
        BLOCK=min(1024, next_power_of_2(sequences)),
        num_warps=4,
    )
    return cu_keys


_key_offsets = operator(
    "nsa_kernels::key_offsets",
    _launch_key_offsets,
    lambda cu_seqlens, tokens, block, stride: torch.empty_like(cu_seqlens),
)


def key_offsets(cu_seqlens: torch.Tensor, tokens: int, block: int, stride: int) -> torch.Tensor:
    """Return where the compressed keys of each packed sequence begin: int32 [sequences + 1]."""
    call = _key_offsets if traced(cu_seqlens) else _launch_key_offsets
    offsets: torch.Tensor = call(cu_seqlens, tokens, block, stride)
    return offsets


def _dims(k: torch.Tensor, v: torch.Tensor) -> dict[str, int]:
    return head_dims(k.shape[3], v.shape[3])


def _rows(*heads: torch.Tensor) -> int:
    """Return the rows of a program: each of 128 threads gets 16 elements."""
    return max(1, 2048 // next_power_of_2(max(x.shape[3] for x in heads)))


@replayed
def launch_means(
    k: torch.Tensor,
    v: torch.Tensor,
    block: int,
    stride: int,
    cu_seqlens: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_device(OP, k)
    b, t, h, d = k.shape
    n = keys_of(t, block, stride, cu_seqlens is not None)
    k_cmp = torch.empty((b, n, h, d), dtype=k.dtype, device=k.device)
    v_cmp = torch.empty((b, n, *v.shape[2:]), dtype=v.dtype, device=v.device)
    if k_cmp.numel() + v_cmp.numel() == 0:
        return k_cmp, v_cmp
    keys = _rows(k, v)
    sequences = 0 if cu_seqlens is None else cu_seqlens.shape[0] - 1
    cu = k if cu_seqlens is None else cu_seqlens.contiguous()
    for some in batches(b, 1):
        compress_kernel[(cdiv(n, keys), h + v.shape[2], some.stop - some.start)](
            *(x[some] for x in (k, v, k_cmp, v_cmp)),
            *(cu, k if cu_keys is None else cu_keys),
            *strides(k, v),
            *(t, n, h, sequences),
            **_dims(k, v),
            LENGTH=block,
            STRIDE=stride,
            UNROLL=min(UNROLL, block),
            KEYS=keys,
            PACKED=cu_seqlens is not None,
            STEPS=max(1, sequences.bit_length()),
            num_warps=4,
        )
    return k_cmp, v_cmp


@replayed
def launch_means_backward(
    dk_cmp: torch.Tensor,
    dv_cmp: torch.Tensor,
    tokens: int,
    block: int,
    stride: int,
    cu_seqlens: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dk [B, T, H, D] and dv."""
    b, n, h, _ = dk_cmp.shape
    dk, dv = (
        torch.empty((b, tokens, *x.shape[2:]), dtype=x.dtype, device=x.device)
        for x in (dk_cmp, dv_cmp)
    )
    if n == 0 or dk.numel() + dv.numel() == 0:
        return dk.zero_(), dv.zero_()
    rows = _rows(dk_cmp, dv_cmp)
    sequences = 0 if cu_seqlens is None else cu_seqlens.shape[0] - 1
    cu = dk if cu_seqlens is None else cu_seqlens.contiguous()
    for some in batches(b, 1):
        compress_backward_kernel[(cdiv(tokens, rows), h + dv_cmp.shape[2], some.stop - some.start)](
            *(x[some] for x in (dk_cmp, dv_cmp, dk, dv)),
            *(cu, dk if cu_keys is None else cu_keys),
            *strides(dk_cmp, dv_cmp),
            *(tokens, n, h, sequences),
            **_dims(dk_cmp, dv_cmp),
            LENGTH=block,
            STRIDE=stride,
            TOKENS=rows,
            PACKED=cu_seqlens is not None,
            STEPS=max(1, sequences.bit_length()),
            num_warps=4,
        )
    return dk, dv


def _fake_means(
    k: torch.Tensor,
    v: torch.Tensor,
    block: int,
    stride: int,
    cu_seqlens: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    b, t, h, d = k.shape
    n = keys_of(t, block, stride, cu_seqlens is not None)
    return k.new_empty((b, n, h, d)), v.new_empty((b, n, *v.shape[2:]))


def _fake_gradients(
    dk_cmp: torch.Tensor, dv_cmp: torch.Tensor, tokens: int, *others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    dk, dv = (x.new_empty((x.shape[0], tokens, *x.shape[2:])) for x in (dk_cmp, dv_cmp))
    return dk, dv


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    k, _, block, stride, cu_seqlens, cu_keys = inputs
    ctx.save_for_backward(cu_seqlens, cu_keys)
    ctx.sizes = (k.shape[1], block, stride)


def _differentiate(
    ctx: Any, backward: Callable[..., Any], dk_cmp: torch.Tensor, dv_cmp: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    check_first_derivative(OP)
    gradients = backward(dk_cmp, dv_cmp, *ctx.sizes, *ctx.saved_tensors)
    return (*gradients, None, None, None, None)


_means = Differentiable(
    "nsa_kernels::means_of_blocks",
    launch_means,
    launch_means_backward,
    keep=_keep,
    differentiate=_differentiate,
    fakes=(_fake_means, _fake_gradients),
)
