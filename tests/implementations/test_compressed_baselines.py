"""Baselines that call FlashAttention over compressed keys."""

import pytest
import torch

from nsabench import Unsupported, ops
from nsabench.implementations import torch_attention
from nsabench.implementations.baselines import bands
from nsabench.implementations.libraries import _calls
from tests.implementations import stand_ins
from tests.implementations.stand_ins import aten_flash, registered

OP = ops.get("compressed")
HEADS = {"HQ": 6, "H": 2, "D": 16}
SHAPE = {"B": 5, "T": 90, **HEADS, "block": 32, "stride": 16}


def drawn(distribution, **sizes):
    return stand_ins.drawn("compressed", distribution, **{**SHAPE, **sizes})


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch_attention, "aten_flash", aten_flash)
    monkeypatch.setattr(torch_attention, "check_flash", lambda *_: None)


def assert_right(name, inputs):
    leaves = [inputs.tensors[x].clone().requires_grad_() for x in ("q", "k", "v")]
    out = registered("compressed", name)(
        *leaves, *list(inputs.tensors.values())[3:], **inputs.options
    )
    torch.testing.assert_close(out.double(), OP.oracle(inputs), atol=1e-5, rtol=1e-5)
    grad_out = torch.randn_like(out)
    found = torch.autograd.grad(out, leaves, grad_out)
    wanted = OP.gradients(inputs, grad_out)
    for grad, x in zip(found, ("q", "k", "v"), strict=True):
        torch.testing.assert_close(grad.double(), wanted[x], atol=1e-5, rtol=1e-5)


def of_the_package(q, k, v, *, softmax_scale, causal):
    assert causal
    return aten_flash(q, k, v, None, (q.shape[1], k.shape[1]), softmax_scale)


@pytest.mark.parametrize("name", ["flash", "flash_attn"])
@pytest.mark.parametrize("T", [32, 95, 96, 100])
@pytest.mark.parametrize(("block", "stride"), [(32, 16), (16, 16), (8, 1)])
def test_queries_of_a_stride_are_folded_into_heads(monkeypatch, name, T, block, stride):
    monkeypatch.setattr(_calls, "find_function", lambda *_: of_the_package)
    assert_right(name, drawn("dense", B=2, T=T, block=block, stride=stride))


@pytest.mark.parametrize(
    ("distribution", "sizes", "why"),
    [("packed", {}, "packed sequences"), ("dense", {"stride": 12}, "stride that divides")],
)
def test_packed_keys_and_odd_strides_are_declined(distribution, sizes, why):
    inputs = drawn(distribution, **sizes)
    with pytest.raises(Unsupported, match=why):
        bands.flash_folded(*inputs.tensors.values(), **inputs.options)
