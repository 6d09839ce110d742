"""Bands, decode, the whole and the layer on a CUDA device: graphs, determinism, torch.compile, no
waiting, memory."""

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


def whole(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gates: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
) -> Tensors:
    return (nsa_kernels.nsa_attention(q, k, v, gates, window=100, cu_seqlens=cu_seqlens),)


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
        "whole": (whole, (q, kv, randn(2, 1000, 2, 128), torch.rand_like(q[..., :3]))),
        "whole, packed": (
            whole,
            (q[:1], kv[:1], randn(1, 1000, 2, 128), torch.rand_like(q[:1, ..., :3]), cu),
        ),
        "decode": (
            decode,
            (randn(2, 16, 128), *caches, *compressed, torch.rand_like(q[:, 0, :, :3])),
        ),
    }


DIFFERENTIABLE = ["window", "packed", "compressed", "whole", "whole, packed"]
NAMES = [*DIFFERENTIABLE, "decode"]


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


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_backwards_do_not_synchronise_and_replay_to_the_bit(name) -> None:
    """As it is, noted, and replayed: the same launches on the same values."""
    call, args = cases()[name]
    leaves = [x.detach().requires_grad_() for x in args[:3]]
    weight = torch.randn_like(call(*leaves, *args[3:])[0])
    runs = []
    for turn in range(4):
        torch.cuda.set_sync_debug_mode("error" if turn else "default")
        try:
            runs.append(torch.autograd.grad(call(*leaves, *args[3:])[0], leaves, weight))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


def test_a_graph_of_a_training_step_replays_on_new_inputs() -> None:
    call, args = cases()["whole"]
    leaves = [x.detach().requires_grad_() for x in args]
    weight = torch.randn_like(call(*leaves)[0])

    def step() -> Tensors:
        out = call(*leaves)[0]
        return out.detach(), *torch.autograd.grad(out, leaves, weight)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for x in leaves[:3]:
            x.copy_(torch.randn_like(x))
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, step(), strict=True))


@pytest.mark.parametrize("heads", [(64, 4), (32, 8)])
def test_the_whole_takes_at_most_3_gib_at_65536_tokens(heads) -> None:
    """Beside arguments, results and what the forward keeps, when it runs as it is, is noted, and is
    replayed."""
    hq, h = heads
    sizes = ((hq, 128), (h, 128), (h, 128), (hq, 3))
    leaves = [randn(1, 65536, *size).requires_grad_() for size in sizes]
    weight = torch.ones_like(leaves[0])
    bound = 3 << 30

    def beyond(call: Callable[[], object]) -> tuple[int, object]:
        torch.cuda.reset_peak_memory_stats()
        results = call()
        return torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated(), results

    for _ in range(3):
        with torch.no_grad():
            used, out = beyond(lambda: nsa_kernels.nsa_attention(*leaves))
            assert used <= bound
        del out
        used, out = beyond(lambda: nsa_kernels.nsa_attention(*leaves))
        assert used <= bound
        used, found = beyond(lambda out=out: torch.autograd.grad(out, leaves, weight))
        # What was kept is free when the gradients are there, and is none of the backward's.
        kept = 65536 * hq * (3 * 128 * 2 + 3 * 4) + 65536 * h * 16 * 8 + (1 << 26)
        assert used <= bound + kept
        del out, found


@pytest.mark.parametrize("name", DIFFERENTIABLE)
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
