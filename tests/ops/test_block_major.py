"""The oracle of selection_blocks against the plain way: gather each query's keys."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nsabench import ops
from nsabench.model.vocabulary import DType
from nsabench.ops import Inputs, _attention, _block_major

OP = ops.get("selection_blocks")
DRAWN = [d for d in OP.distributions if d not in ("recorded", "dense")]
NEAR = 1e-14  # times the size of a score, whose rounding is a factor of its weight


class Results(NamedTuple):
    out: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


def gathered(inputs: Inputs, grad_out: Tensor, causal: bool) -> Results:
    """[T,S*block_size] keys a head, those that a query does not see with weight zero."""
    t, block = inputs.tensors, int(inputs.options["block_size"])
    q, k, v, chosen = (t[name] for name in OP.arguments)
    tokens, kv_heads = chosen.shape[1:3]
    group = q.shape[2] // kv_heads
    ends = t.get("cu_seqlens", torch.tensor([0, tokens])).tolist()
    start, end = torch.empty(2, tokens, dtype=torch.long)
    for first, after in itertools.pairwise(ends):
        start[first:after], end[first:after] = first, after
    last = torch.arange(tokens) if causal else end - 1
    wanted = Results(
        torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64),
        *(torch.zeros_like(x, dtype=torch.float64) for x in (q, k, v)),
    )
    for b, h in np.ndindex(chosen.shape[0], kv_heads):
        blocks = chosen[b, :, h].long().sort(-1).values
        blocks[:, 1:].masked_fill_(blocks[:, 1:] == blocks[:, :-1], -1)
        keys = (blocks.unsqueeze(-1) * block + torch.arange(block)).flatten(1)
        keep = (keys >= 0) & (keys + start[:, None] <= last[:, None])
        keys = torch.where(keep, keys + start[:, None], 0)
        rows = (b, slice(None), slice(h * group, (h + 1) * group))
        qd, kd, vd = q[rows].double(), k[b, keys, h].double(), v[b, keys, h].double()
        scale = inputs.options["sm_scale"]
        p = _attention.weights(qd, kd, scale, keep.unsqueeze(1))
        dq, dk, dv = _attention.gradients(p, qd, kd, vd, grad_out[rows].double(), scale)
        wanted.out[rows], wanted.dq[rows] = p @ vd, dq
        wanted.dk[b, :, h].index_add_(0, keys.flatten(), dk.flatten(0, 1))
        wanted.dv[b, :, h].index_add_(0, keys.flatten(), dv.flatten(0, 1))
    return wanted


def assert_as_gathered(inputs: Inputs, causal: bool) -> None:
    grad_out = OP.draw_grad(inputs, 5)
    wanted = gathered(inputs, grad_out, causal)
    inputs = inputs.replaced(causal=causal)
    out = OP.oracle(inputs)
    also, grads = OP.results(inputs, grad_out)
    assert torch.equal(also, out)
    assert list(grads) == ["q", "k", "v"]
    longest = [float(inputs.tensors[name].double().norm(dim=-1).max()) for name in ("q", "k")]
    near = NEAR * max(1.0, inputs.options["sm_scale"] * longest[0] * longest[1])
    for name, right, found in zip(wanted._fields, wanted, (out, *grads.values()), strict=True):
        assert found.dtype == torch.float64 and found.shape == right.shape
        off = float((found - right).norm())
        # Where all but one weight is next to nothing, the terms of dq are larger than dq.
        assert off <= near * max(1.0, float(right.norm())), f"{name} is {off} off"


@st.composite
def problems(draw: st.DrawFn) -> Inputs:
    distribution = draw(st.sampled_from(DRAWN))
    heads = draw(st.sampled_from([1, 2]))
    sizes = {
        "B": 1 if distribution == "packed" else draw(st.sampled_from([1, 2])),
        "T": draw(st.integers(1, 150)),
        "HQ": heads * draw(st.sampled_from([1, 2, 3])),
        "H": heads,
        "D": 8,
        "Dv": draw(st.sampled_from([8, 5])),
        "S": draw(st.integers(1, 12)),
        "block_size": draw(st.sampled_from([16, 24, 32, 64])),
    }
    shape = OP.shape_model.model_validate(sizes)
    inputs = OP.draw(shape, DType.FLOAT32, distribution, draw(st.integers(0, 99)), "cpu")
    if draw(st.booleans()):  # blocks as no distribution has them: behind the query, or nowhere
        indices = inputs.tensors["block_indices"]
        beyond = -(-sizes["T"] // sizes["block_size"]) + 2
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        indices.copy_(torch.from_numpy(rng.integers(-2, beyond, indices.shape)))
    return inputs


@settings(deadline=None)
@given(
    inputs=problems(),
    causal=st.booleans(),
    chunk=st.sampled_from([1, 1 << 12, 1 << 26]),
    tile=st.sampled_from([1, 1 << 15, 1 << 26]),
    rows=st.sampled_from([1, 4, 128]),
)
def test_it_is_as_if_keys_were_gathered(
    inputs: Inputs, causal: bool, chunk: int, tile: int, rows: int
) -> None:
    """However few queries and tiles are held at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_block_major, "CHUNK_ELEMENTS", chunk)
        patch.setattr(_block_major, "TILE_ELEMENTS_ON_CPU", tile)
        patch.setattr(_block_major, "MOST_ROWS", rows)
        assert_as_gathered(inputs, causal)


def of(distribution: str, dtype: DType = DType.FLOAT32, **sizes: int) -> Inputs:
    """In float32: products of narrower values are exact in float64, and so are most sums."""
    shape = OP.shape_model.model_validate(sizes)
    return OP.draw(shape, dtype, distribution, 3, "cpu")


HEADS = {"HQ": 8, "H": 2, "D": 32}


@pytest.mark.parametrize("causal", [True, False])
def test_all_blocks_are_gathered_too(causal: bool) -> None:
    inputs = of("dense", DType.BFLOAT16, B=2, T=333, **HEADS, S=6)
    assert_as_gathered(inputs, causal)


def test_queries_without_keys_have_zeros_where_nobody_has_one() -> None:
    inputs = of("random", B=1, T=40, **HEADS, S=2)
    inputs.tensors["block_indices"].fill_(-1)
    grad_out = OP.draw_grad(inputs, 5)
    assert not OP.oracle(inputs).any()
    assert not any(x.any() for x in OP.gradients(inputs, grad_out).values())


def test_a_query_with_all_its_weight_on_one_key_has_no_gradient() -> None:
    """None at all: a typical row of nothing but noise is nothing to hold a row to."""
    inputs = of("random", B=1, T=200, **HEADS, S=3)
    inputs.tensors["q"] *= 1e4
    grads = OP.gradients(inputs, OP.draw_grad(inputs, 5))
    assert not grads["q"][:, 0].any()
    assert (grads["q"] == 0).all(-1).double().mean() > 0.5
    inputs.tensors["block_indices"].fill_(-1)
    inputs.tensors["block_indices"][:, 64] = 1
    grads = OP.gradients(inputs, OP.draw_grad(inputs, 5))
    assert not grads["q"].any() and not grads["k"].any() and grads["v"].any()


def test_keys_that_nobody_chose_are_not_read() -> None:
    inputs = of("random", B=1, T=130, **HEADS, S=2)
    inputs.tensors["block_indices"].clamp_(max=1)  # the last block has two keys
    wanted = OP.oracle(inputs)
    for name in ("k", "v"):
        inputs.tensors[name][:, 128:] = float("nan")
    assert torch.equal(OP.oracle(inputs), wanted)
