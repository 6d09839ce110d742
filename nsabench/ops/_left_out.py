"""Rows of a result that are not compared: how the oracle of an op marks them.

A row (of the last axis) of NaN was not computed, since the case is long. A row of infinity is left
out, since rounding decides its value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NOT_COMPUTED = float("nan")
ROUNDING_DECIDES = float("inf")


def compared(truth: Tensor) -> Tensor:
    """Return which rows of an oracle's result are compared: bool."""
    return truth[..., 0].isfinite()


def counts(truth: Tensor) -> tuple[int, int]:
    """Count the rows that are compared, and those that are left out because of rounding."""
    return int(compared(truth).sum()), int(truth[..., 0].isinf().sum())


def without(truth: Tensor) -> Tensor:
    return truth.masked_fill(~compared(truth).unsqueeze(-1), 0.0)
