"""Bounds of the rows of which rounding decides what is right: every legal choice keeps them."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from nsabench import ops
from nsabench.checker import compare as parity
from nsabench.checks import parity as checks
from nsabench.implementations.baselines.nsa_attention import attend
from nsabench.implementations.controls.parity_keys import rows_left_out_made_up
from nsabench.model.vocabulary import DType
from nsabench.ops import Inputs, Shape, _attention, _nsa
from nsabench.registry import Honest

OP = ops.get("nsa_attention")
SIZES = {"B": 2, "T": 400, "HQ": 4, "H": 2, "D": 32, "block": 8, "stride": 4, "block_size": 16}
SIZES |= {"n_selected": 4, "window": 12}


def shape() -> Shape:
    return OP.shape_model.model_validate(SIZES)


def drawn(seed: int, distribution: str = "dense", dtype: str = "bfloat16") -> tuple[Inputs, Tensor]:
    inputs = OP.draw(shape(), DType(dtype), distribution, seed, "cpu")
    return inputs, OP.oracle(inputs)


def of_choice(inputs: Inputs, piece: _nsa.Piece, row: int, blocks: list[int]) -> Tensor:
    """The output [G,Dv] of one query that selects these blocks, and no other."""
    size, batch = inputs.options["block_size"], piece.rows[0]
    position = int(piece.rows[1][row]) - piece.start
    keys = [t for b in blocks for t in range(b * size, (b + 1) * size) if t <= position]
    at = torch.tensor(keys) + piece.start
    k, v = (inputs.tensors[n][batch, at, piece.head].double() for n in ("k", "v"))
    keep = torch.ones(len(keys), dtype=torch.bool)
    selected = _attention.weights(piece.q[row], k, inputs.options["sm_scale"], keep) @ v
    parts = [piece.compressed.out[row], selected, piece.window.out[row]]
    gates = piece.gates[row]
    return sum(gates[:, i : i + 1] * part for i, part in enumerate(parts))  # type: ignore[return-value]


@pytest.mark.parametrize("distribution", ["dense", "packed"])
def test_every_choice_between_blocks_whose_scores_are_alike_is_within(distribution: str) -> None:
    tried = 0
    inputs, oracle = drawn(0, distribution)
    legal = OP.legal(inputs, oracle)
    assert legal is not None
    assert legal.rows.tolist() == oracle[..., 0].flatten().isinf().nonzero().flatten().tolist()
    by_row = {int(r): i for i, r in enumerate(legal.rows)}
    length, heads = inputs.tensors["q"].shape[1:3]
    for piece in _nsa.pieces(inputs):
        for row in piece.hangs.nonzero().flatten().tolist():
            scores = piece.ranked[row]
            count = inputs.options["n_selected"]
            last = scores.sort(descending=True).values[count - 1]
            near = _nsa.RESOLVED["torch.bfloat16"] * last
            sure = (scores > last + near).nonzero().flatten().tolist()
            alike = ((scores - last).abs() <= near).nonzero().flatten().tolist()
            for more in combinations(alike, count - len(sure)):
                out = of_choice(inputs, piece, row, [*sure, *more])
                token = piece.rows[0] * length + int(piece.rows[1][row])
                for head in range(out.shape[0]):
                    at = by_row[token * heads + piece.rows[2].start + head]
                    assert (out[head] >= legal.lo[at] - 1e-12).all()
                    assert (out[head] <= legal.hi[at] + 1e-12).all()
                    tried += 1
    assert tried > 5


def measured(inputs: Inputs, oracle: Tensor, out: Tensor) -> parity.Errors:
    legal = OP.legal(inputs, oracle)
    return parity.measure("output", out, oracle, 2e-3, leaves_out=True, legal=legal)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("seed", range(2))
def test_an_honest_kernel_is_within_whatever_it_chose(seed: int, dtype: str) -> None:
    inputs, oracle = drawn(seed, dtype=dtype)
    t, options = inputs.tensors, dict(inputs.options)
    rough: dict[str, Any] = {**t, "k": t["k"].float() * 1.0005}  # another rounding, another choice
    for tensors in (t, rough):
        out = attend(*(x.to(t["q"].dtype) for x in tensors.values()), **options)
        left_out = oracle[..., 0].isinf()
        only = parity.measure("output", out, oracle, 2e-3, leaves_out=True)
        errors = measured(inputs, oracle, out)
        assert errors.rows_left_out == int(left_out.sum())
        assert errors.worst_row <= max(only.worst_row, 8e-3)


@pytest.mark.parametrize("garbage", ["noise", "zeros", "neighbour", "one element"])
def test_garbage_in_these_rows_alone_is_seen(garbage: str) -> None:
    inputs, oracle = drawn(0)
    right = attend(*inputs.tensors.values(), **inputs.options)
    rows = oracle[..., 0].isinf().nonzero()
    at = tuple(rows[len(rows) // 2].tolist())
    out = right.clone()
    out[at] = {
        "noise": torch.randn_like(out[at]) * right.float().std(),
        "zeros": torch.zeros_like(out[at]),
        "neighbour": right[at[0], at[1] - 1, at[2]],
        "one element": torch.cat([out[at][:1] + 3.0, out[at][1:]]),
    }[garbage].to(out.dtype)
    without = parity.measure("output", out, oracle, 2e-3, leaves_out=True)
    assert without.worst_row < 0.05
    errors = measured(inputs, oracle, out)
    assert errors.worst_row > 0.1 and errors.worst_row_at == f"output[{', '.join(map(str, at))}]"


def test_the_control_that_makes_these_rows_up_is_seen() -> None:
    inputs, oracle = drawn(0)
    honest = Honest(OP, "torch_nsa", attend)
    out = rows_left_out_made_up(honest, *inputs.tensors.values(), **inputs.options)
    assert parity.measure("output", out, oracle, 2e-3, leaves_out=True).worst_row < 0.05
    errors = measured(inputs, oracle, out)
    limit = checks.MOST_EXCUSED * checks.noise(DType.BFLOAT16, OP.terms(shape()))
    assert errors.worst_row > limit


def test_of_rows_that_nobody_is_held_to_nothing_is_shown() -> None:
    oracle = torch.full((2, 3, 8), torch.inf, dtype=torch.float64)
    found = parity.measure("output", torch.zeros(2, 3, 8), oracle, 2e-3, leaves_out=True)
    assert math.isnan(found.mae)
