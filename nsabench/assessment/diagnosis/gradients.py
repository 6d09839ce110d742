"""Mistakes in a gradient, which can be told from the right one without knowing the op."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from nsabench.assessment.diagnosis.location import locate

EXPLAINS = 0.05  # an explanation leaves at most this share of the gradient's norm
KNOWN = {
    math.log(2): "a factor log(2) is missing: exp2 was differentiated as exp",
    1 / math.log(2): "a factor log(2) is applied once too often",
    -1.0: "its sign is wrong",
    0.5: "half of it is missing",
    2.0: "it is counted twice",
}
NEAR = 0.02


def explain(name: str, got: Tensor, right: Tensor, previous: Tensor | None) -> str:
    """What a wrong gradient looks like beside the right one.

    previous: the right gradient of the call before this one, if it had other inputs.
    """
    bad = ~torch.isfinite(got)
    if bad.any():
        return f"{int(bad.sum())} of {got.numel()} elements are NaN or infinite: {locate(bad)}"
    mistake = next(_found(got.double(), right, previous), "")
    return f"{name} {mistake}" if mistake else _where(name, (got.double() - right).abs())


def _found(got: Tensor, right: Tensor, previous: Tensor | None) -> Iterator[str]:
    if not got.any():
        yield "is zero everywhere"
    if not right.any():
        return
    factor = float((got * right).sum() / right.square().sum())
    if _leaves(got, right, factor) < EXPLAINS:
        texts = (text for value, text in KNOWN.items() if math.isclose(factor, value, rel_tol=NEAR))
        yield f"is {factor:.4g} times the right one" + "".join(f" ({text})" for text in texts)
    if previous is not None and previous.any():
        factor = float((got * previous).sum() / previous.square().sum())
        if _leaves(got, previous, factor) < EXPLAINS:
            yield "is the gradient of an earlier call, not of this one"


def _leaves(got: Tensor, guess: Tensor, factor: float) -> float:
    return float((got - factor * guess).norm() / (got.norm() or 1.0))


def _where(name: str, off: Tensor) -> str:
    return f"the largest errors of {name} are in {locate(off >= off.max() / 4)}"
