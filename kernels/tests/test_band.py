"""Compressed attention with offsets that do not fit its keys."""

import nsa_kernels
import pytest
import torch
from cases import gradients, ints, make


def attended(tensors, *offsets, **sizes):
    """Return results and gradients."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    found = nsa_kernels.compressed_attention(*leaves, *offsets, **sizes)
    return [*found, *gradients(found, leaves)]


def test_keys_that_are_not_there_are_not_read():
    """``cu_keys`` promises more keys than the tensor has. Other keys follow in memory."""
    q, k, v = make("compressed_attention", t=100, block=32, stride=8).tensors.values()
    some = [q, k[:, :3], v[:, :3]]
    first, *others = (attended(some, ints(0, 100), ints(0, keys)) for keys in (3, 5, 2**31 - 1))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("edges", "edges_of_keys", "n"),
    [
        # In a tile of queries, the first sees all 64 keys and the last sees 5.
        ([0, 32, 64], [63, 64, 5], 64),
        # A query is so far from its sequence's start that indices of its keys wrap round.
        ([0, 32, -(2**31) + 100, 64], [100, 128, 64, 128], 128),
    ],
)
def test_offsets_that_decrease_touch_nothing_out_of_bounds(edges, edges_of_keys, n):
    q = make("sliding_window", t=64, dtype=torch.bfloat16).tensors["q"]
    _, k, v = make("sliding_window", t=2 * n, dtype=torch.bfloat16).tensors.values()
    found = []
    for behind in (0.0, 100.0):
        k[:, n:], v[:, n:] = behind, behind
        offsets = ints(*edges), ints(*edges_of_keys)
        found.append(attended([q, k[:, :n], v[:, :n]], *offsets, block=1, stride=1))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
