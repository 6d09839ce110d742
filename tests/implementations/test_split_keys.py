"""Spans and blocks by Triton kernels of our own, through Triton's interpreter: right baselines."""

from __future__ import annotations

import pytest
import torch

from nsabench import Unsupported, ops
from nsabench.implementations.baselines import split_keys as module
from nsabench.model.vocabulary import DType
from nsabench.ops import Inputs

RANGES = {"B": 2, "S": 2, "G": 2, "H": 3, "D": 24, "Dv": 16, "S_kv": 100, "n_spans": 3, "L": 61}
BLOCKS = {"B": 2, "S": 150, "HQ": 6, "H": 2, "D": 24, "Dv": 16, "block_size": 16, "n_selected": 4}


def drawn(op: str, distribution: str, **sizes: int) -> Inputs:
    shape = ops.get(op).shape_model.model_validate(sizes)
    return ops.get(op).draw(shape, DType.FLOAT32, distribution, seed=3, device="cpu")


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize(
    "distribution",
    ["mixed", "overlapping", "unsorted", "reversed", "out_of_bounds", "empty_rows", "all_empty"],
)
def test_a_key_counts_once_and_however_keys_are_shared_out(distribution: str, splits: int) -> None:
    inputs = drawn("selection_ranges", distribution, **RANGES)
    tensors, scale = inputs.tensors.values(), inputs.options["sm_scale"]
    out = module.attend(*tensors, scale, 61, disjoint=False, splits=splits)
    oracle = ops.get("selection_ranges").oracle(inputs)
    torch.testing.assert_close(out.double(), oracle, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("multiprocessors", [1, 100])
@pytest.mark.parametrize("S", [150, 30])
def test_blocks_of_a_cache_are_read_in_place(
    monkeypatch: pytest.MonkeyPatch, S: int, multiprocessors: int
) -> None:
    monkeypatch.setattr(module, "_multiprocessors", lambda device: multiprocessors)
    inputs = drawn("decode_selected", "random", **{**BLOCKS, "S": S})
    out = module.split_blocks(*inputs.tensors.values(), **inputs.options)
    oracle = ops.get("decode_selected").oracle(inputs)
    torch.testing.assert_close(out.double(), oracle, atol=1e-5, rtol=1e-5)


def test_spans_are_shared_out_by_what_the_device_asks_for() -> None:
    inputs = drawn("selection_ranges", "disjoint", **RANGES)
    out = module.split_keys(*inputs.tensors.values(), **inputs.options)
    oracle = ops.get("selection_ranges").oracle(inputs)
    torch.testing.assert_close(out.double(), oracle, atol=1e-5, rtol=1e-5)
    assert [module.splits_of(rows, 16, 132) for rows in (1, 16, 100, 264, 4096)] == [
        16,
        16,
        2,
        1,
        1,
    ]
    assert module.splits_of(1, 1, 132) == 1 and module.splits_of(1, 1000, 132) == 32


def test_more_spans_than_are_held_are_declined() -> None:
    inputs = drawn(
        "selection_ranges", "disjoint", **{**RANGES, "S_kv": 900, "n_spans": 257, "L": 514}
    )
    with pytest.raises(Unsupported, match="257 spans"):
        module.split_keys(*inputs.tensors.values(), **inputs.options)
