"""Checks of arguments, shared by the families. Nothing here waits for the GPU."""

from __future__ import annotations

import torch

from ..jit.compat import CPU_ALLOWED, check_version

check_version()


DTYPES = (torch.float16, torch.bfloat16, torch.float32)


MIN_DIM, MAX_DIM = 16, 256


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless the condition holds."""
    if not condition:
        raise ValueError(message)


def check_device(op: str, x: torch.Tensor) -> None:
    """Raises ValueError for a tensor where no kernel can run."""
    if x.device.type != "cuda" and not CPU_ALLOWED:
        raise ValueError(
            f"{op}: needs CUDA tensors, got {x.device}; "
            "set TRITON_INTERPRET=1 before triton is imported to run on the CPU"
        )


def check_no_backward(op: str, *inputs: torch.Tensor) -> None:
    """Raises ValueError where autograd expects a gradient that the op does not have."""
    if torch.is_grad_enabled():
        for x in inputs:
            if x.requires_grad:
                raise ValueError(
                    f"{op}: has no backward and an input requires a gradient; call it under "
                    "torch.no_grad(), or use selection_ranges, which has one"
                )


def check_qkv(
    op: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
) -> None:
    """Check what all ops share: one dtype, one device, head dims in range.

    ``dtypes`` may hold others than the kernels', for which any device will do.

    Raises:
        TypeError: a dtype that is not among ``dtypes``, or a mix of them.
        ValueError: tensors on different or unusable devices, head dims outside 16..256.
    """
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


def check_strides(op: str, block: int, stride: int, block_size: int) -> None:
    """Raises ValueError unless compressed keys and selection blocks are whole strides."""
    require(
        min(block, stride, block_size) >= 1 and block % stride == 0 and block_size % stride == 0,
        f"{op}: stride must divide block and block_size, all positive; "
        f"got stride={stride}, block={block}, block_size={block_size}",
    )
