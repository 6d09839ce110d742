"""Serving on a CUDA device: batches of unequal lengths, pages, chunks. One graph for all steps of a
generation, no waiting for the device, the bits of a contiguous cache."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
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


def paged(x: torch.Tensor, page: int, heads_last: bool = False) -> Tensors:
    """A cache [B, H, S, D] as a pool of pages in some order, and its block table."""
    b, h, s, d = x.shape
    n = -(-s // page)
    x = torch.nn.functional.pad(x, (0, 0, 0, n * page - s))
    order = torch.randperm(b * n, generator=torch.Generator().manual_seed(page)).cuda()
    pool = x.new_empty((b * n, page, h, d))
    pool[order] = x.unflatten(2, (n, page)).permute(0, 2, 3, 1, 4).flatten(0, 1)
    pool = pool.transpose(1, 2)
    return pool if heads_last else pool.contiguous(), order.view(b, n).int()


@pytest.mark.parametrize(("page", "heads_last"), [(16, True), (64, False), (256, True)])
@pytest.mark.parametrize("hq", [8, 80])
def test_one_graph_serves_a_paged_generation_with_the_bits_of_a_contiguous_one(
    hq: int, page: int, heads_last: bool
) -> None:
    args = inputs(hq, ints(0, 1, 30, 64, 1000, 4090))
    q, k, v, k_cmp, v_cmp, gates, lengths = args
    (pool_k, table), (pool_v, _) = paged(k, page, heads_last), paged(v, page, heads_last)
    given = (q, pool_k, pool_v, k_cmp, v_cmp, gates, lengths, table)
    for _ in range(3):
        nsa_kernels.decode_step(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = nsa_kernels.decode_step(*given)
    for _ in range(40):
        q.copy_(torch.randn_like(q))
        graph.replay()
        # Room is rounded up to whole pages, and shares with it: sums may be in another order.
        torch.testing.assert_close(out, nsa_kernels.decode_step(*args), atol=2e-2, rtol=2e-2)
        lengths.add_(1)
    exact = ROOM % page == 0
    assert not exact or torch.equal(nsa_kernels.decode_step(*given), nsa_kernels.decode_step(*args))


def test_pages_that_are_not_there_are_not_read() -> None:
    q, k, v, *_, lengths = inputs(8, ints(4096))
    (pool_k, table), (pool_v, _) = paged(k, 64), paged(v, 64)
    table[0, 3:7] = ints(-1, -(2**31), 2**31 - 1, pool_k.shape[0])
    spans = ints(0, 1000).view(1, 1, 1, 2).expand(1, 2, -1, -1)
    out, lse = nsa_kernels.decode_selected(q, pool_k, pool_v, spans, lengths, table)
    around = ints(0, 192, 448, 1000).view(1, 1, 2, 2).expand(1, 2, -1, -1)
    want, want_lse = nsa_kernels.decode_selected(q, k, v, around, lengths)
    torch.testing.assert_close(out, want, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse, want_lse, atol=1e-3, rtol=1e-3)
    gone = torch.full_like(table, -1)
    out, lse = nsa_kernels.decode_selected(q, pool_k, pool_v, spans, lengths, gone)
    assert not out.any() and bool((lse == -torch.inf).all())


@pytest.mark.parametrize("hq", [8, 32])
def test_a_prefill_in_chunks_is_the_prefill_in_one(hq) -> None:
    torch.manual_seed(0)
    t = 3000
    q, k, v, gates = (
        randn(1, t, hq, 128),
        randn(1, t, 2, 128),
        randn(1, t, 2, 128),
        randn(1, t, hq, 3),
    )
    # All blocks that there are: a choice between close scores may differ.
    sizes = {"n_selected": 47}
    whole = nsa_kernels.nsa_attention(q, k, v, gates, **sizes)
    edges = (0, 1000, 1001, 1500, t)
    chunks = []
    for begin, end in pairwise(edges):
        part = (q[:, begin:end], k[:, :end], v[:, :end], gates[:, begin:end])
        chunks.append(nsa_kernels.nsa_attention(*part, **sizes))
    torch.testing.assert_close(torch.cat(chunks, 1), whole, atol=2e-2, rtol=2e-2)


def packed_chunks() -> tuple[Callable[[], Any], Tensors]:
    torch.manual_seed(0)
    q, gates = randn(1, 300, 16, 128), randn(1, 300, 16, 3)
    k, v = randn(1, 2000, 2, 128), randn(1, 2000, 2, 128)
    cu, cu_k = ints(0, 100, 100, 300), ints(0, 700, 1000, 2000)
    more = {"cu_seqlens": cu, "cu_seqlens_k": cu_k}
    return lambda: nsa_kernels.nsa_attention(q, k, v, gates, **more), (cu, cu_k)


def test_a_graph_of_packed_chunks_follows_their_edges() -> None:
    call, (cu, cu_k) = packed_chunks()
    for _ in range(3):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    cu.copy_(ints(0, 30, 250, 290))
    cu_k.copy_(ints(0, 40, 1200, 1999))
    graph.replay()
    assert torch.equal(out, call()) and not out[:, 290:].any()


def test_packed_chunks_do_not_synchronise() -> None:
    call, _ = packed_chunks()
    call()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def calls(args: Tensors) -> dict[str, Callable[[], Any]]:
    q, k, v, k_cmp, v_cmp, _, lengths = args
    lse = torch.zeros(q.shape[:2], device="cuda")
    scores = torch.rand(q.shape[0], 1, 2, -(-ROOM // 64), device="cuda")
    spans = ints(0, 64, 640, 704).view(1, 1, 2, 2).expand(q.shape[0], 2, -1, -1)
    (pool_k, table), (pool_v, _) = paged(k, 64), paged(v, 64)
    pools = (pool_k, pool_v)
    return {
        "step": lambda: nsa_kernels.decode_step(*args),
        "paged": lambda: nsa_kernels.decode_step(q, *pools, *args[3:], table),
        "paged window": lambda: nsa_kernels.decode_window(q, *pools, lengths, table, window=512),
        "compressed": lambda: nsa_kernels.decode_compressed(q, k_cmp, v_cmp, lengths),
        "scores": lambda: nsa_kernels.decode_scores(q, k_cmp, lse, 79, lengths),
        "blocks": lambda: nsa_kernels.select_blocks(scores, 16, first_position=lengths - 1),
        "window": lambda: nsa_kernels.decode_window(q, k, v, lengths, window=512),
        "selected": lambda: nsa_kernels.decode_selected(q, k, v, spans, lengths),
    }


NAMES = ["step", "paged", "paged window", "compressed", "scores", "blocks", "window", "selected"]


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
