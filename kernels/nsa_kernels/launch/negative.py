"""Tensors whose minus is a bit: torch notes it on a view and leaves the memory as it is."""

from __future__ import annotations

import torch


def resolved(x: torch.Tensor) -> torch.Tensor:
    """``x`` where its memory holds its values, as a kernel reads them.

    Of a negative view, such as ``z.conj().imag``, the values in other memory, of the same size and
    strides: ``x.resolve_neg()`` may have other strides, which a launch was already told.
    """
    if not x.is_neg():
        return x
    held = torch._neg_view(x.detach())
    if held.numel() == 0:
        return held
    steps = zip(held.shape, held.stride(), strict=True)
    room = 1 + sum((n - 1) * step for n, step in steps)
    return held.as_strided((room,), (1,)).neg().as_strided(held.shape, held.stride(), 0)
