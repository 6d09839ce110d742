"""The search for the hypothesis that comes nearest to a wrong result, and the words for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from nsabench import ops
from nsabench.machine.clock import now_s
from nsabench.ops import Op

EXPLAINS = 0.2  # An explanation leaves at most this share of the error.
SURE = 0.01  # The search ends at a hypothesis that leaves at most this share.
BETTER = 0.9  # A later hypothesis replaces an earlier one if its error is smaller by this factor.
TIME_LIMIT_S = 2.0
FAR_OFF = 4.0  # a vector is wrong if its error is within this factor of the worst one's
EVERYWHERE = "every part of it"
ROUNDING, SMALL = 4.0, 64.0


@dataclass(frozen=True)
class Hypothesis:
    """A mistake in words ("attends to key 0 only") and the float64 result that it gives."""

    text: str
    predict: Callable[[], Tensor]


def find_best(
    hypotheses: Iterable[Hypothesis], error_of: Callable[[Tensor], float], off: float
) -> tuple[Hypothesis | None, float]:
    """Return the hypothesis with the least error, and its error, within `TIME_LIMIT_S`.

    off: the error of the right result.
    """
    best, error = None, float("inf")
    end = now_s() + TIME_LIMIT_S
    for hypothesis in hypotheses:
        tried = error_of(hypothesis.predict())
        if tried < BETTER * error:
            best, error = hypothesis, tried
        if error <= SURE * off or now_s() > end:
            break
    return best, error


def explain(best: Hypothesis | None, error: float, off: float, by_vector: Tensor) -> str:
    """Return the best hypothesis with its place and error, or "" if it explains too little.

    by_vector: the error of each vector of the full result.
    """
    if best is None or error > EXPLAINS * off:
        return ""
    # A few times the error that the explanation leaves is rounding.
    where = locate(by_vector > max(ROUNDING * error, float(by_vector.max()) / SMALL))
    where = "" if where == EVERYWHERE else f" in {where}"
    return f"{best.text}{where} (MAE {error:.2g} against that hypothesis, {off:.3g} against the op)"


def blank_left_out(op: Op, result: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    if not op.samples_queries:
        return result, right
    left_out = ~ops.compared(right).unsqueeze(-1)
    return result.masked_fill(left_out, 0.0), right.masked_fill(left_out, 0.0)


def locate_not_finite(result: Tensor) -> str:
    """Return how many elements are NaN or infinite and where, or "" if all are finite."""
    bad = ~torch.isfinite(result)
    if not bad.any():
        return ""
    return f"{int(bad.sum())} of {bad.numel()} elements are NaN or infinite: {locate(bad)}"


def locate(marked: Tensor) -> str:
    """Return the extent of the marked elements along each axis, as "axis 0 (of 100): 64 to 99"."""
    parts = []
    for axis, size in enumerate(marked.shape):
        others = [other for other in range(marked.dim()) if other != axis]
        marks = torch.nonzero(marked.sum(others) if others else marked).flatten().tolist()
        if marks and len(marks) < size:
            span = f"index {marks[0]}" if len(marks) == 1 else f"{marks[0]} to {marks[-1]}"
            gaps = "" if len(marks) == marks[-1] - marks[0] + 1 else f" ({len(marks)} of them)"
            parts.append(f"axis {axis} (of {size}): {span}{gaps}")
    return ", ".join(parts) or EVERYWHERE


def locate_worst(off: Tensor) -> str:
    return locate(off >= off.max() / FAR_OFF)


def zeros_explain(result: Tensor, right: Tensor, off: Tensor) -> Tensor | None:
    """Return which elements are zero and should not be, if only these are off."""
    zeros = (result == 0) & (right != 0)
    return zeros if zeros.any() and is_all(off, zeros) else None


def find_factor(result: Tensor, of: Tensor) -> float:
    """Return the number of times `of` that is nearest to the result."""
    square = float(of.square().sum())
    return float((result * of).sum()) / square if square else 0.0


def is_all(off: Tensor, marked: Tensor) -> bool:
    rest = off.masked_fill(marked, 0.0).mean(-1)
    return float(rest.max()) <= float(off.mean(-1).max()) / SMALL
