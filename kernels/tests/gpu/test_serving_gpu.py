"""Decoding batches of unequal lengths on a CUDA device: one graph for all steps, no waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

import nsa_kernels  # noqa: E402

ROOM, BLOCK, STRIDE = 5000, 32, 16
KEYS = (ROOM - BLOCK) // STRIDE + 1
Tensors = tuple[torch.Tensor, ...]


def randn(*size: int) -> torch.Tensor:
    return torch.randn(size, device="cuda", dtype=torch.bfloat16)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def inputs(hq: int, lengths: torch.Tensor) -> Tensors:
    torch.manual_seed(0)
    b = lengths.shape[0]
    fine = (randn(b, 2, ROOM, 128), randn(b, 2, ROOM, 128))
    compressed = (randn(b, 2, KEYS, 128), randn(b, 2, KEYS, 128))
    return randn(b, hq, 128), *fine, *compressed, torch.rand_like(randn(b, hq, 3)), lengths


def alone(args: Tensors, entry: int) -> torch.Tensor:
    """The step of one entry on caches of its length, without lengths."""
    q, k, v, k_cmp, v_cmp, gates, lengths = (x[entry : entry + 1] for x in args)
    n = int(lengths)
    if n == 0:
        return torch.zeros_like(q)
    held = max(0, (n - BLOCK) // STRIDE + 1)
    fine = (k[:, :, :n].contiguous(), v[:, :, :n].contiguous())
    compressed = (k_cmp[:, :, :held].contiguous(), v_cmp[:, :, :held].contiguous())
    return nsa_kernels.decode_step(q, *fine, *compressed, gates)


@pytest.mark.parametrize("hq", [8, 80])
def test_one_graph_serves_all_steps_of_a_generation(hq) -> None:
    args = inputs(hq, ints(0, 1, 30, 64, 1000, 4090))
    lengths = args[-1]
    for _ in range(3):
        nsa_kernels.decode_step(*args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = nsa_kernels.decode_step(*args)
    for step in range(70):
        args[0].copy_(torch.randn_like(args[0]))
        graph.replay()
        assert torch.equal(out, nsa_kernels.decode_step(*args))
        if step % 23 == 0:
            want = torch.cat([alone(args, i) for i in range(len(lengths))])
            torch.testing.assert_close(out, want, atol=2e-2, rtol=2e-2)
        lengths.add_(1)


def calls(args: Tensors) -> dict[str, Callable[[], Any]]:
    q, k, v, k_cmp, v_cmp, _, lengths = args
    lse = torch.zeros(q.shape[:2], device="cuda")
    scores = torch.rand(q.shape[0], 1, 2, -(-ROOM // 64), device="cuda")
    spans = ints(0, 64, 640, 704).view(1, 1, 2, 2).expand(q.shape[0], 2, -1, -1)
    return {
        "step": lambda: nsa_kernels.decode_step(*args),
        "compressed": lambda: nsa_kernels.decode_compressed(q, k_cmp, v_cmp, lengths),
        "scores": lambda: nsa_kernels.decode_scores(q, k_cmp, lse, 79, lengths),
        "blocks": lambda: nsa_kernels.select_blocks(scores, 16, first_position=lengths - 1),
        "window": lambda: nsa_kernels.decode_window(q, k, v, lengths, window=512),
        "selected": lambda: nsa_kernels.decode_selected(q, k, v, spans, lengths),
    }


NAMES = ["step", "compressed", "scores", "blocks", "window", "selected"]


@pytest.mark.parametrize("hq", [8, 80])
@pytest.mark.parametrize("name", NAMES)
def test_lengths_are_never_read_on_the_host(name, hq) -> None:
    call = calls(inputs(hq, ints(0, 1, 30, 64, 1000, 4090)))[name]
    call()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("hq", [8, 80])
def test_a_step_gives_the_same_bits_twice(hq) -> None:
    args = inputs(hq, ints(0, 17, 4999, 2500))
    assert torch.equal(nsa_kernels.decode_step(*args), nsa_kernels.decode_step(*args))
