"""Bands, decode and the layer on a CUDA device: graphs, determinism, torch.compile, no waiting."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

import nsa_kernels  # noqa: E402
from nsa_kernels.attention.layer import NSAttention  # noqa: E402

Tensors = tuple[torch.Tensor, ...]


def randn(*size: int) -> torch.Tensor:
    return torch.randn(size, device="cuda", dtype=torch.bfloat16)


def window(*x: torch.Tensor) -> Tensors:
    return nsa_kernels.sliding_window(*x, window=300)


def decode(*x: torch.Tensor) -> Tensors:
    return (nsa_kernels.decode_step(*x),)


def cases() -> dict[str, tuple[Callable[..., Tensors], Tensors]]:
    torch.manual_seed(0)
    q, kv, keys = randn(2, 1000, 16, 128), randn(2, 1000, 2, 128), randn(2, 61, 2, 128)
    caches = (randn(2, 2, 5000, 128), randn(2, 2, 5000, 128))
    compressed = (randn(2, 2, 311, 128), randn(2, 2, 311, 128))
    cu = torch.tensor([0, 1, 400, 400, 1000], dtype=torch.int32, device="cuda")
    return {
        "window": (window, (q, kv, randn(2, 1000, 2, 128))),
        "packed": (window, (q[:1], kv[:1], randn(1, 1000, 2, 128), cu)),
        "compressed": (
            nsa_kernels.compressed_attention_with_scores,
            (q, keys, randn(2, 61, 2, 128)),
        ),
        "decode": (
            decode,
            (randn(2, 16, 128), *caches, *compressed, torch.rand_like(q[:, 0, :, :3])),
        ),
    }


NAMES = ["window", "packed", "compressed", "decode"]


@pytest.mark.parametrize("name", NAMES)
def test_graph_replays_on_new_inputs(name) -> None:
    call, args = cases()[name]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call(*args)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call(*args)
    for x in args[:3]:
        x.copy_(torch.randn_like(x))
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, call(*args), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_calls_do_not_synchronise(name) -> None:
    call, args = cases()[name]
    call(*args)
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(*args)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["window", "packed", "compressed"])
def test_gradients_are_bit_identical_and_compile(name) -> None:
    call, args = cases()[name]
    leaves = [x.detach().requires_grad_() for x in args[:3]]

    def loss(*x: torch.Tensor) -> torch.Tensor:
        return call(*x, *args[3:])[0].float().square().sum()

    first = torch.autograd.grad(loss(*leaves), leaves)
    again = torch.autograd.grad(loss(*leaves), leaves)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    compiled = torch.compile(loss, fullgraph=True)
    for a, b in zip(torch.autograd.grad(compiled(*leaves), leaves), first, strict=True):
        torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)


def test_layer_decodes_as_it_prefills() -> None:
    torch.manual_seed(0)
    layer = NSAttention(256, 16, 2, 64, n_selected=4, window=100, compression="mlp").cuda()
    x = torch.randn(2, 700, 256, device="cuda")
    with torch.no_grad():
        whole, cache = layer(x), layer.cache(room=64)
        steps = [layer(x[:, :500], cache)]
        steps += [layer(x[:, t : t + 1], cache) for t in range(500, 700)]
    # fp32 throughout, but matrix products of other shapes round differently.
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-3, rtol=1e-3)
