"""Argument checks that all ops share. No check waits for the GPU."""

from __future__ import annotations

from math import inf
from numbers import Integral, Real
from typing import Any

import torch

from ..jit.compat import CPU_ALLOWED, check_version

check_version()


DTYPES = (torch.float16, torch.bfloat16, torch.float32)


MIN_DIM, MAX_DIM = 16, 256
MAX_HEADS = (1 << 15) - 1
"""The most heads. The second axis of a CUDA grid takes 65,535 programs, and some launches need two
programs for each head: for its keys and for its values."""
MAX_TOKENS = 1 << 30
"""Caches and sequences have fewer tokens, so that sums of positions in kernels fit in int32."""
MAX_BLOCKS = 1 << 16
"""The most selection blocks of a context."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def kind(x: Any) -> str:
    """Return the dtype or type of a wrong argument, for a message."""
    return str(x.dtype) if isinstance(x, torch.Tensor) else type(x).__name__


def check_whole(op: str, name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise ValueError unless ``value`` is a whole number from ``least`` to ``most``."""
    if type(value) is int and value >= least and (most is None or value <= most):
        return
    whole = isinstance(value, (Integral, torch.SymInt)) and not isinstance(value, bool)
    require(
        whole and value >= least,
        f"{op}: {name} must be a whole number of at least {least}; got {value!r}",
    )
    require(most is None or value <= most, f"{op}: {name} must be at most {most}; got {value!r}")


def softmax_scale(op: str, q: torch.Tensor, sm_scale: float | None) -> float:
    """Return the factor on q.k: ``sm_scale``, or 1/sqrt(D). Raise ValueError for a wrong one."""
    if sm_scale is None:
        if q.dim() == 0 or q.shape[-1] == 0:
            raise ValueError(f"{op}: expected q with a head dim; got {tuple(q.shape)}")
        return q.shape[-1] ** -0.5
    check_scale(op, sm_scale)
    return float(sm_scale)


def check_scale(op: str, sm_scale: Any) -> None:
    """Raise ValueError for a scale that is neither None nor a positive number."""
    if sm_scale is None or (type(sm_scale) is float and 0 < sm_scale < inf):
        return
    number = isinstance(sm_scale, (Real, torch.SymFloat)) and not isinstance(sm_scale, bool)
    require(
        number and 0 < sm_scale < inf,
        f"{op}: sm_scale must be a positive number, or None for 1/sqrt(D); got {sm_scale!r}",
    )


def check_transforms(op: str, *inputs: torch.Tensor) -> None:
    """Raise RuntimeError if torch.func (grad, vmap, jvp, ...) transforms one of the inputs."""
    if torch._C._are_functorch_transforms_active() and any(
        torch._C._functorch.is_functorch_wrapped_tensor(x) for x in inputs
    ):
        raise RuntimeError(
            f"{op}: torch.func cannot transform it; for gradients use torch.autograd, and instead "
            "of vmap pass arguments with a batch dimension"
        )


def check_first_derivative(op: str) -> None:
    """Raise RuntimeError if a backward is called with ``create_graph=True``."""
    if torch.is_grad_enabled():  # autograd would take the result for a constant
        raise RuntimeError(
            f"{op}: has no second derivative; take its gradient without create_graph"
        )


def check_device(op: str, x: torch.Tensor) -> None:
    """Raise ValueError if no kernel can run on the device of ``x``."""
    device = x.device.type
    if device != "cuda" and not (CPU_ALLOWED and device == "cpu"):
        raise ValueError(
            f"{op}: needs CUDA tensors, got {x.device}; "
            "to run on the CPU, set TRITON_INTERPRET=1 before triton is imported"
        )


def check_no_backward(op: str, *inputs: torch.Tensor) -> None:
    """Raise ValueError if autograd wants a gradient of an op without a backward."""
    if torch.is_grad_enabled():
        for x in inputs:
            if x.requires_grad:
                raise ValueError(
                    f"{op}: has no backward and an input requires a gradient; call it under "
                    "torch.no_grad(), or use selection_ranges, which has one"
                )


def check_no_config(op: str, config: object) -> None:
    """Raise ValueError if a config is given to a call that goes through an operator of torch."""
    require(
        config is None,
        f"{op}: leave config out under torch.compile and if an input requires a gradient",
    )


def check_qkv(
    op: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
) -> None:
    """Check what all ops share: one dtype, one device, head dims in range.

    ``dtypes`` may include dtypes that no kernel takes. For these, any device is allowed.

    Raises:
        TypeError: a dtype that is not among ``dtypes``, or dtypes that differ.
        RuntimeError: torch.func transforms an input.
        ValueError: a tensor has no dimension, devices differ or run no kernels, head dims differ or
            are outside 16..256, or there are more than MAX_HEADS heads.
    """
    check_transforms(op, q, k, v)
    if not (q.dim() and k.dim() and v.dim()):
        raise ValueError(
            f"{op}: expected q, k and v with a head dim; got {tuple(q.shape)}, {tuple(k.shape)}, "
            f"{tuple(v.shape)}"
        )
    if q.dtype not in dtypes or k.dtype != q.dtype or v.dtype != q.dtype:
        known = ", ".join(str(x).removeprefix("torch.") for x in dtypes)
        raise TypeError(
            f"{op}: q, k and v must share one dtype of {known}; got {q.dtype}, {k.dtype}, {v.dtype}"
        )
    if not (q.device == k.device == v.device):
        raise ValueError(
            f"{op}: q, k and v must be on one device; got {q.device}, {k.device}, {v.device}"
        )
    if q.dtype in DTYPES:
        check_device(op, q)
    d, dv = q.shape[-1], v.shape[-1]
    if k.shape[-1] != d:
        raise ValueError(f"{op}: q has head dim {d} but k has {k.shape[-1]}")
    if not (MIN_DIM <= d <= MAX_DIM and MIN_DIM <= dv <= MAX_DIM):
        raise ValueError(f"{op}: head dims must be in {MIN_DIM}..{MAX_DIM}; got D={d}, Dv={dv}")
    if q.dim() > 1 and q.shape[-2] > MAX_HEADS:
        raise ValueError(f"{op}: at most {MAX_HEADS} heads; got {q.shape[-2]}")


def check_int32(op: str, name: str, x: Any) -> None:
    """Raise TypeError unless ``x`` is an int32 tensor."""
    if not isinstance(x, torch.Tensor) or x.dtype != torch.int32:
        raise TypeError(f"{op}: {name} must be an int32 tensor; got {kind(x)}")


def check_lengths(op: str, name: str, lengths: Any, like: torch.Tensor) -> None:
    """Raise TypeError or ValueError unless ``lengths`` is int32 [B], for the B entries of
    ``like``."""
    check_int32(op, name, lengths)
    require(
        lengths.shape == like.shape[:1] and lengths.device == like.device,
        f"{op}: {name} must be [{like.shape[0]}], one number for each entry of the batch, on "
        f"{like.device}; got {list(lengths.shape)} on {lengths.device}",
    )


def check_block_table(
    op: str, block_table: Any, cache_seqlens: torch.Tensor | None, like: torch.Tensor
) -> None:
    """Raise TypeError or ValueError unless ``block_table`` is int32 [B, n], for the B entries of
    ``like``, and lengths are given."""
    check_int32(op, "block_table", block_table)
    require(
        cache_seqlens is not None,
        f"{op}: a block_table needs cache_seqlens, the number of tokens of each entry",
    )
    require(
        block_table.dim() == 2
        and block_table.shape[0] == like.shape[0]
        and block_table.shape[1] >= 1
        and block_table.device == like.device,
        f"{op}: block_table must be [{like.shape[0]}, pages per entry], on {like.device}; got "
        f"{list(block_table.shape)} on {block_table.device}",
    )


def check_room(op: str, tokens: int) -> None:
    """Raise ValueError unless ``tokens``, the capacity of a cache, is in 1..MAX_TOKENS - 1."""
    require(
        1 <= tokens < MAX_TOKENS,
        f"{op}: a cache has room for 1 to {MAX_TOKENS - 1} tokens; got {tokens}",
    )


def check_strides(op: str, block: int, stride: int, block_size: int) -> None:
    """Raise ValueError unless ``stride`` divides ``block`` and ``block_size``."""
    for name, size in (("block", block), ("stride", stride), ("block_size", block_size)):
        if type(size) is not int or size > MAX_TOKENS:
            check_whole(op, name, size, 1, MAX_TOKENS)
    require(
        min(block, stride, block_size) >= 1 and block % stride == 0 and block_size % stride == 0,
        f"{op}: stride must divide block and block_size, all positive; "
        f"got stride={stride}, block={block}, block_size={block_size}",
    )
