"""Rows of a result that nobody is held to: what an op with `leaves_rows_out` says by its oracle.

A row (of the last axis) of NaN was not looked at: at a great length only some queries are. A row of
infinity was, and is left out, since what is right there hangs on rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NOT_LOOKED_AT = float("nan")
HANGS_ON_ROUNDING = float("inf")


def compared(truth: Tensor) -> Tensor:
    """bool: which rows of an oracle's result are held to it."""
    kept: Tensor = truth[..., 0].isfinite()
    return kept


def counts(truth: Tensor) -> tuple[int, int]:
    """How many rows are compared, and how many are left out since they hang on rounding."""
    return int(compared(truth).sum()), int(truth[..., 0].isinf().sum())


def without(truth: Tensor) -> Tensor:
    """The result with zeros in the rows that nobody is held to."""
    held: Tensor = truth.masked_fill(~compared(truth).unsqueeze(-1), 0.0)
    return held
