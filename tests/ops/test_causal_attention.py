"""The oracle of dense attention over packed sequences of which some are not looked at."""

from __future__ import annotations

import pytest
import torch

from nsabench import ops
from nsabench.model.case import Case
from nsabench.model.vocabulary import Direction, DType
from nsabench.ops import _sampled
from nsabench.ops._sequences import Sequences
from tests.execution.worker.test_inputs import case


def packed(direction: Direction) -> Case:
    """Of 16384 tokens a few are looked at, and some sequences are of a handful of tokens."""
    shape = {"B": 4, "T": 4096, "HQ": 1, "H": 1, "D": 16, "Dv": 16}
    changed = {
        "op": "causal_attention",
        "shape": shape,
        "dtype": DType.FLOAT16,
        "distribution": "packed",
        "direction": direction,
    }
    return case().model_copy(update=changed)


def test_a_sequence_of_which_nothing_is_looked_at_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_sampled, "_SECRET", 0)  # of some processes a token of each is looked at
    of = packed(Direction.BACKWARD)
    op = ops.get(of.op)
    inputs = op.draw(ops.sizes(of), of.dtype, of.distribution, of.seed, "cpu")
    looked_at = _sampled.tokens(inputs)
    counts = [
        int(((looked_at >= start) & (looked_at < end)).sum())
        for _, start, end in Sequences.spans(inputs)
    ]
    assert 0 in counts and any(counts)

    output = op.oracle(inputs)[0]
    gradients = op.gradients(inputs, op.draw_grad(inputs, 1))
    assert torch.isfinite(output[looked_at]).all()
    assert all(torch.isfinite(gradients[name]).all() for name in ("k", "v"))
