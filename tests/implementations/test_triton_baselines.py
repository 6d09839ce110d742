"""The Triton kernels of baselines for selected blocks and spans, in Triton's interpreter."""

import pytest
import torch

from nsabench import Unsupported, ops
from nsabench.implementations.baselines import query_major, split_keys
from tests.implementations.stand_ins import assert_right, drawn

CHOSEN = {"B": 1, "T": 64, "HQ": 4, "H": 2, "D": 32, "S": 3, "block_size": 16}
RANGES = {"B": 2, "S": 2, "G": 2, "H": 3, "D": 24, "Dv": 16, "S_kv": 100, "n_spans": 3, "L": 61}
BLOCKS = {"B": 2, "S": 150, "HQ": 6, "H": 2, "D": 24, "Dv": 16, "block_size": 16, "n_selected": 4}


@pytest.mark.parametrize(
    ("distribution", "changed"),
    [
        ("random", {}),
        ("packed", {"HQ": 2}),
        ("repeated", {"B": 2, "T": 35, "HQ": 6}),
        ("empty_rows", {"Dv": 16, "D": 24}),
    ],
)
def test_query_major_is_right_forward_and_backward(distribution, changed, monkeypatch):
    # The queries of the first block take several programs.
    monkeypatch.setattr(query_major, "PIECE", 24)
    inputs = drawn("selection_blocks", distribution, **{**CHOSEN, **changed})
    for x in inputs.tensors.values():
        x.requires_grad_(x.is_floating_point())
    out = assert_right(query_major.query_major, "selection_blocks", inputs)
    grad_out = torch.randn_like(out)
    out.backward(grad_out)
    for name, wanted in ops.get("selection_blocks").gradients(inputs, grad_out).items():
        found = inputs.tensors[name].grad
        assert found is not None
        torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)


def test_blocks_that_are_no_tiles_are_declined():
    inputs = drawn("selection_blocks", "random", **{**CHOSEN, "block_size": 24})
    with pytest.raises(Unsupported, match="16, 32, 64"):
        query_major.query_major(*inputs.tensors.values(), **inputs.options)


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize(
    "distribution",
    ["mixed", "overlapping", "unsorted", "reversed", "out_of_bounds", "empty_rows", "all_empty"],
)
def test_a_key_of_overlapping_spans_counts_once(distribution, splits):
    def call(*tensors, sm_scale, selected_len):
        return split_keys.attend(*tensors, sm_scale, 61, disjoint=False, splits=splits)

    assert_right(call, "selection_ranges", drawn("selection_ranges", distribution, **RANGES))


@pytest.mark.parametrize("multiprocessors", [1, 100])
@pytest.mark.parametrize("S", [150, 30])
def test_blocks_of_a_cache_are_read_in_place(monkeypatch, S, multiprocessors):
    monkeypatch.setattr(split_keys, "_multiprocessors", lambda device: multiprocessors)
    inputs = drawn("decode_selected", "random", **{**BLOCKS, "S": S})
    assert_right(split_keys.split_blocks, "decode_selected", inputs)


def test_the_number_of_splits_suits_the_device():
    inputs = drawn("selection_ranges", "disjoint", **RANGES)
    assert_right(split_keys.split_keys, "selection_ranges", inputs)
    rows = (1, 16, 100, 264, 4096)
    assert [split_keys.splits_of(n, 16, 132) for n in rows] == [16, 16, 2, 1, 1]
    assert split_keys.splits_of(1, 1, 132) == 1 and split_keys.splits_of(1, 1000, 132) == 32


def test_too_many_spans_are_declined():
    sizes = {**RANGES, "S_kv": 900, "n_spans": 257, "L": 514}
    inputs = drawn("selection_ranges", "disjoint", **sizes)
    with pytest.raises(Unsupported, match="257 spans"):
        split_keys.split_keys(*inputs.tensors.values(), **inputs.options)
