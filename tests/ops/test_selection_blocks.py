"""The oracle of selection_blocks against a mask over all keys."""

import torch

from nsabench import ops
from nsabench.model.vocabulary import DType

OP = ops.get("selection_blocks")
HEADS = {"HQ": 8, "H": 2, "D": 32}


def drawn(distribution="random", **sizes):
    shape = OP.shape_model.model_validate({"B": 1, **HEADS, **sizes})
    return OP.draw(shape, DType.FLOAT32, distribution, 3, "cpu")


def test_queries_without_keys_have_zeros_where_nobody_has_one():
    inputs = drawn(T=40, S=2)
    inputs.tensors["block_indices"].fill_(-1)
    assert not OP.oracle(inputs).any()
    assert not any(x.any() for x in OP.gradients(inputs, OP.draw_grad(inputs, 5)).values())


def test_a_query_with_all_its_weight_on_one_key_has_no_gradient():
    """The gradient must be exactly 0: rounding noise would be a useless reference for other
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
    inputs.tensors["block_indices"].clamp_(max=1)  # nothing selects the last block
    wanted = OP.oracle(inputs)
    for name in ("k", "v"):
        inputs.tensors[name][:, 128:] = float("nan")
    assert torch.equal(OP.oracle(inputs), wanted)
