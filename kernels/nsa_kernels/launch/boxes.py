"""Tensors that a kernel in Gluon copies box by box: by TMA, which needs a descriptor of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..jit.direct import Direct, descriptor

MOST = 256
"""Descriptors that are kept for each tensor of a replayed launch; with one more all are made
anew."""


class Box(NamedTuple):
    """How a tensor is seen, as rows of ``shape`` that begin ``row`` elements apart, and of how many
    rows and columns a copy is. What a copy takes from behind the rows is 0."""

    shape: tuple[int, int]
    row: int
    tile: tuple[int, int]


class Boxed(NamedTuple):
    """A tensor as an argument that is copied in boxes."""

    tensor: torch.Tensor
    box: Box


def in_rows(x: torch.Tensor) -> bool:
    """Whether a token of x [B, T, H, D] is a row of boxes: its heads follow one another, and it
    begins where TMA can copy."""
    heads_in_a_row = x.stride(3) == 1 and (x.shape[2] == 1 or x.stride(2) == x.shape[3])
    steps = (x.stride(0) if x.shape[0] > 1 else 0, x.stride(1))
    aligned = x.data_ptr() % 16 == 0 and all(step * x.element_size() % 16 == 0 for step in steps)
    return heads_in_a_row and aligned and x.stride(1) > 0


def boxed(x: torch.Tensor, rows: int) -> Boxed:
    """One batch [T, H, D] as T rows, of which ``rows`` and the columns of a head are copied."""
    t, h, d = x.shape
    return Boxed(x, Box((t, h * d), x.stride(0), (rows, d)))


def heads_in_rows(x: torch.Tensor) -> bool:
    """Whether each head of x [N, H, D] is a row of boxes: a token is so many rows behind the one
    before, and rows begin where TMA can copy."""
    step_t, step_h, step_d = x.stride()
    aligned = x.data_ptr() % 16 == 0 and step_h * x.element_size() % 16 == 0
    return step_d == 1 and step_h >= x.shape[2] and step_t % step_h == 0 and aligned


def boxed_heads(x: torch.Tensor, heads: int) -> Boxed:
    """x [N, H, D] as rows of D, each a head, of which ``heads`` and 64 columns are copied. A token
    has ``x.stride(0) // x.stride(1)`` rows, of which H are its heads."""
    n, h, d = x.shape
    rows = (n - 1) * (x.stride(0) // x.stride(1)) + h
    return Boxed(x, Box((rows, d), x.stride(1), (heads, 64)))


Boxes = tuple[Box | None, ...]
"""Of the pointers of a launch; empty where none is copied in boxes."""


def taken_apart(pointers: Sequence[torch.Tensor | Boxed]) -> tuple[tuple[torch.Tensor, ...], Boxes]:
    """The tensors, and their boxes."""
    boxes = tuple([x.box if isinstance(x, Boxed) else None for x in pointers])
    tensors = tuple([x.tensor if isinstance(x, Boxed) else x for x in pointers])
    return tensors, boxes if any(boxes) else ()


def as_triton_takes(pointers: Sequence[torch.Tensor], boxes: Boxes) -> tuple[Any, ...]:
    """The arguments of Triton's own launch."""
    if not boxes:
        return tuple(pointers)
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    def argument(x: torch.Tensor, box: Box | None) -> Any:
        if box is None:
            return x
        # As tensor cores read it from shared memory: rows of 128 bytes, their parts in turn.
        layout = NVMMASharedLayout(128, 8 * x.element_size(), 2)
        return TensorDescriptor(x, list(box.shape), [box.row, 1], list(box.tile), layout)

    return tuple([argument(x, box) for x, box in zip(pointers, boxes, strict=True)])


Described = Callable[[Sequence[int]], tuple[Any, ...]]


def described(found: Direct, boxes: Boxes) -> Described:
    """What makes of addresses the arguments of the compiled launcher: what is there of a box is
    remembered, since tensors come back to where others were."""
    kinds = iter(found.boxes)
    makers = [None if box is None else _maker(next(kinds), box) for box in boxes]

    def arguments(addresses: Sequence[int]) -> tuple[Any, ...]:
        given: list[Any] = []
        for address, make in zip(addresses, makers, strict=True):
            if make is None:
                given.append(address)
            else:
                given += make(address)
        return tuple(given)

    return arguments


def _maker(kind: dict[str, Any], box: Box) -> Callable[[int], tuple[Any, ...]]:
    known: dict[int, tuple[Any, ...]] = {}

    def make(address: int) -> tuple[Any, ...]:
        made = known.get(address)
        if made is None:
            if len(known) >= MOST:
                known.clear()
            made = known[address] = descriptor(kind, address, box.shape, (box.row, 1))
        return made

    return make
