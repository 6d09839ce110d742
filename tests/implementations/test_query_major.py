"""Block selection by Triton kernels of our own, through Triton's interpreter: a right baseline."""

from __future__ import annotations

import pytest
import torch

from nsabench import Unsupported, ops
from nsabench.implementations.baselines import query_major as module
from nsabench.implementations.baselines.query_major import query_major
from nsabench.model.vocabulary import DType

OP = ops.get("selection_blocks")
SHAPE = {"B": 1, "T": 64, "HQ": 4, "H": 2, "D": 32, "S": 3, "block_size": 16}


@pytest.mark.parametrize(
    ("distribution", "changed"),
    [
        ("random", {}),
        ("packed", {"HQ": 2}),
        ("repeated", {"B": 2, "T": 35, "HQ": 6}),
        ("empty_rows", {"Dv": 16, "D": 24}),
    ],
)
def test_it_is_right_forward_and_backward(
    distribution: str, changed: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE", 24)  # the queries of the first block take several programs
    shape = OP.shape_model.model_validate({**SHAPE, **changed})
    inputs = OP.draw(shape, DType.FLOAT32, distribution, seed=3, device="cpu")
    given = {
        name: x.clone().requires_grad_(x.is_floating_point()) for name, x in inputs.tensors.items()
    }
    out = query_major(*given.values(), **inputs.options)
    torch.testing.assert_close(out.double(), OP.oracle(inputs), atol=1e-5, rtol=1e-5)
    grad_out = torch.randn_like(out)
    out.backward(grad_out)
    for name, wanted in OP.gradients(inputs, grad_out).items():
        torch.testing.assert_close(given[name].grad.double(), wanted, atol=1e-5, rtol=1e-5)


def test_a_size_that_is_no_tile_is_declined() -> None:
    shape = OP.shape_model.model_validate({**SHAPE, "block_size": 24})
    inputs = OP.draw(shape, DType.FLOAT32, "random", seed=3, device="cpu")
    with pytest.raises(Unsupported, match="16, 32, 64"):
        query_major(*inputs.tensors.values(), **inputs.options)
