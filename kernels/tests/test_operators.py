"""Operators are declared so that every torch that the kernels promise can read their schemas."""

from __future__ import annotations

import functools

import torch
from nsa_kernels.launch.operators import operator


def plus(x: torch.Tensor, more: float | None) -> torch.Tensor:
    return x + (more or 0.0)


@functools.wraps(plus)
def wrapped(*arguments: object) -> object:
    return plus(*arguments)  # type: ignore[arg-type]


def test_annotations_are_no_texts() -> None:
    """torch 2.4 reads no annotations that are strings: importing nsa_kernels would fail there."""
    assert plus.__annotations__["x"] == "torch.Tensor", "as the __future__ import leaves them"
    call = operator("nsa_kernels_tests::plus", wrapped)
    assert plus.__annotations__["x"] is torch.Tensor
    assert torch.equal(call(torch.ones(2), 1.5), torch.full((2,), 2.5))
