"""FlashAttention and FlexAttention over compressed keys: the folds and the tiles they are given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nsabench import Unsupported, ops
from nsabench.implementations import torch_attention
from nsabench.implementations.baselines import compressed as baselines
from nsabench.implementations.libraries import _calls
from nsabench.ops import Inputs
from tests.implementations import stand_ins
from tests.implementations.stand_ins import (
    aten_flash,
    blind_the_host,
    looked,
    registered,
    uncompiled_flex,
)

OP = ops.get("compressed")
HEADS = {"HQ": 6, "H": 2, "D": 16}
SHAPE = {"B": 5, "T": 90, **HEADS, "block": 32, "stride": 16}
# Sequences that just do not, or just do, fill a block, a stride or a folded row; one after another
# at places of the packing that are multiples of the stride, and at others.
LENGTHS = {
    "edges": [1, 31, 32, 33, 47, 48, 49, 130],
    "aligned": [16, 64, 32, 48, 16],
    "one": [90],
    "short_last": [79, 2, 31],
    "an_empty_one": [40, 0, 50],
}


def drawn(distribution: str, **sizes: int) -> Inputs:
    return stand_ins.drawn("compressed", distribution, **{**SHAPE, **sizes})


def packed(lengths: list[int]) -> Inputs:
    counts = [max(0, (n - 32) // 16 + 1) for n in lengths]
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: torch.randn(1, sum(size), HEADS[heads], HEADS["D"], generator=generator)
        for name, size, heads in (("q", lengths, "HQ"), ("k", counts, "H"), ("v", counts, "H"))
    }
    for name, each in (("cu_seqlens", lengths), ("cu_keys", counts)):
        tensors[name] = torch.tensor([0, *each]).cumsum(0).int()
    options = {"block": 32, "stride": 16, "sm_scale": 0.25, "max_seqlen": max(lengths)}
    return Inputs(tensors, options)


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_attention, "aten_flash", aten_flash)
    monkeypatch.setattr(torch_attention, "check_flash", lambda *_: None)
    uncompiled_flex(monkeypatch)


def assert_right(name: str, inputs: Inputs, *, gradients: bool = True) -> None:
    leaves = [inputs.tensors[x].clone().requires_grad_(gradients) for x in ("q", "k", "v")]
    out = registered("compressed", name)(
        *leaves, *list(inputs.tensors.values())[3:], **inputs.options
    )
    torch.testing.assert_close(out.double(), OP.oracle(inputs), atol=1e-5, rtol=1e-5)
    if gradients:
        grad_out = torch.randn_like(out)
        found = torch.autograd.grad(out, leaves, grad_out)
        wanted = OP.gradients(inputs, grad_out)
        for grad, x in zip(found, ("q", "k", "v"), strict=True):
            torch.testing.assert_close(grad.double(), wanted[x], atol=1e-5, rtol=1e-5)


def of_the_package(
    q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool
) -> Tensor:
    assert causal
    return aten_flash(q, k, v, None, (q.shape[1], k.shape[1]), softmax_scale)


@pytest.mark.parametrize("name", ["flash", "flash_attn"])
@pytest.mark.parametrize("T", [32, 95, 96, 100])
@pytest.mark.parametrize(("block", "stride"), [(32, 16), (16, 16), (8, 1)])
def test_queries_of_a_stride_are_heads(
    monkeypatch: pytest.MonkeyPatch, name: str, T: int, block: int, stride: int
) -> None:
    monkeypatch.setattr(_calls, "find_function", lambda *_: of_the_package)
    assert_right(name, drawn("dense", B=2, T=T, block=block, stride=stride))


@pytest.mark.parametrize(("block", "stride"), [(32, 16), (16, 16), (12, 4), (4, 1)])
@pytest.mark.parametrize("sequences", [1, 2, 5])
def test_packed_sequences_are_folded_each_for_itself(
    sequences: int, block: int, stride: int
) -> None:
    assert_right("flash_varlen", drawn("packed", B=sequences, block=block, stride=stride))


@pytest.mark.parametrize("name", LENGTHS)
def test_sequences_that_fill_no_block(name: str) -> None:
    assert_right("flash_varlen", packed(LENGTHS[name]))


def test_no_sequence_has_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_attention, "aten_flash", looked)
    inputs = packed([31, 1, 20])
    found = baselines.flash_varlen(*inputs.tensors.values(), **inputs.options)
    assert found.shape == inputs.tensors["q"].shape and not found.any()


def test_sequences_are_packed_without_a_look_at_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = packed(LENGTHS["edges"])
    q, _, _, *cu = inputs.tensors.values()
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        torch_attention, "aten_flash", lambda *given: calls.append(given) or given[0]
    )
    blind_the_host(monkeypatch)
    baselines.flash_varlen(*inputs.tensors.values(), **inputs.options)
    monkeypatch.undo()
    (rows, keys), longest = calls[0][3:5]
    assert longest == (130 // 16 + 2, (130 - 32) // 16 + 1)
    assert keys is cu[1]
    assert rows[-1] == calls[0][0].shape[0] == q.shape[1] // 16 + 8


@pytest.mark.parametrize(
    ("name", "distribution", "sizes", "why"),
    [
        ("flash", "packed", {}, "flash_varlen"),
        ("flash_varlen", "dense", {}, "use flash"),
        ("flash", "dense", {"stride": 12}, "stride that divides"),
        ("flash_varlen", "packed", {"stride": 12}, "stride that divides"),
    ],
)
def test_what_cannot_be_folded(
    name: str, distribution: str, sizes: dict[str, int], why: str
) -> None:
    inputs = drawn(distribution, **sizes)
    with pytest.raises(Unsupported, match=why):
        getattr(baselines, name)(*inputs.tensors.values(), **inputs.options)


@pytest.mark.filterwarnings("ignore:.*without torch.compile")
@pytest.mark.parametrize(("block", "stride"), [(32, 16), (7, 3), (4, 1)])
def test_flex_attention(block: int, stride: int) -> None:
    inputs = drawn("dense", HQ=4, block=block, stride=stride)
    assert_right("flex_attention", inputs, gradients=False)
