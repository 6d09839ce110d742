"""The oracle of selection_blocks against a mask over all keys."""

import numpy as np
import pytest
import torch

from nsabench import ops
from nsabench.model.vocabulary import DType
from nsabench.ops import selection_blocks

OP = ops.get("selection_blocks")
HEADS = {"HQ": 8, "H": 2, "D": 32}


def drawn(distribution="random", **sizes):
    shape = OP.shape_model.model_validate({"B": 1, **HEADS, **sizes})
    return OP.draw(shape, DType.FLOAT32, distribution, 3, "cpu")


def by_mask(inputs, causal):
    """Return the output, and the float64 q, k and v that it was computed from."""
    t, size = inputs.tensors, inputs.options["block_size"]
    leaves = [t[name].double().requires_grad_() for name in ("q", "k", "v")]
    tokens, group = t["q"].shape[1], t["q"].shape[2] // t["k"].shape[2]
    q, k, v = leaves[0], *(x.repeat_interleave(group, 2) for x in leaves[1:])
    ends = t.get("cu_seqlens", torch.tensor([0, tokens]))
    place = torch.arange(tokens)
    sequence = torch.searchsorted(ends, place, right=True) - 1
    block = (place - ends[sequence]) // size
    keep = (t["block_indices"].unsqueeze(-1) == block).any(3)  # [B,T,H,keys]
    keep &= (sequence.unsqueeze(1) == sequence).unsqueeze(1)
    if causal:
        keep &= (place.unsqueeze(1) >= place).unsqueeze(1)
    scores = torch.einsum("bthd,bshd->bths", q, k) * inputs.options["sm_scale"]
    scores = scores.masked_fill(~keep.repeat_interleave(group, 2), -torch.inf)
    return torch.einsum("bths,bshd->bthd", scores.softmax(-1).nan_to_num(), v), leaves


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("chunk", [1, 1 << 16, 1 << 26])
@pytest.mark.parametrize("distribution", ["random", "packed", "repeated"])
def test_any_choice_of_blocks_is_attended_to(distribution, chunk, causal, monkeypatch):
    """Blocks behind the query, blocks that are nowhere, and however few queries at a time."""
    monkeypatch.setattr(selection_blocks, "CHUNK_ELEMENTS", chunk)
    inputs = drawn(distribution, T=77, S=5, Dv=5, block_size=16)
    indices = inputs.tensors["block_indices"]
    if distribution == "random":
        indices.copy_(torch.from_numpy(np.random.default_rng(1).integers(-2, 7, indices.shape)))
        indices.masked_fill_(indices < 0, -1)
    grad_out = OP.draw_grad(inputs, 5)
    wanted, leaves = by_mask(inputs, causal)
    right = torch.autograd.grad(wanted, leaves, grad_out.double())
    out, grads = OP.results(inputs.replaced(causal=causal), grad_out)
    for found, expected in zip((out, *grads.values()), (wanted, *right), strict=True):
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, expected.detach(), rtol=1e-9, atol=1e-11)


def test_queries_without_keys_have_zeros_where_nobody_has_one():
    inputs = drawn(T=40, S=2)
    inputs.tensors["block_indices"].fill_(-1)
    assert not OP.oracle(inputs).any()
    assert not any(x.any() for x in OP.gradients(inputs, OP.draw_grad(inputs, 5)).values())


def test_a_query_with_all_its_weight_on_one_key_has_no_gradient():
    """The gradient is exactly zero: a typical row of pure noise cannot be a reference for other
    rows."""
    inputs = drawn(T=200, S=3)
    inputs.tensors["q"] *= 1e4
    grads = OP.gradients(inputs, OP.draw_grad(inputs, 5))
    assert not grads["q"][:, 0].any()
    assert (grads["q"] == 0).all(-1).double().mean() > 0.5
    inputs.tensors["block_indices"].fill_(-1)
    inputs.tensors["block_indices"][:, 64] = 1
    grads = OP.gradients(inputs, OP.draw_grad(inputs, 5))
    assert not grads["q"].any() and not grads["k"].any() and grads["v"].any()


def test_keys_that_nobody_chose_are_not_read():
    inputs = drawn(T=130, S=2)
    inputs.tensors["block_indices"].clamp_(max=1)  # the last block has two keys
    wanted = OP.oracle(inputs)
    for name in ("k", "v"):
        inputs.tensors[name][:, 128:] = float("nan")
    assert torch.equal(OP.oracle(inputs), wanted)
