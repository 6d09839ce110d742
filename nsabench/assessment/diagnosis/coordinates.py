"""Where in a tensor a flat index points."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def coordinates(flat: Tensor, shape: Sequence[int]) -> tuple[Tensor, ...]:
    """As `torch.unravel_index`, which imports a compiler's algebra for it and takes seconds.

    flat: int64 of any shape, each 0 or more and below the product of `shape`. Returns one int64
    tensor of its shape for each axis.
    """
    found = []
    for size in reversed(shape):
        found.append(flat % size)
        flat = flat // size
    return tuple(reversed(found))
