"""The CUDA C++ kernels on a GPU: right on every kind of shape, the same twice, in graphs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
pytest.importorskip("cuda.core")

import oracle  # noqa: E402
from nsa_kernels import cuda  # noqa: E402

HALVES = [torch.float16, torch.bfloat16]


def randn(*size: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(size, device="cuda", dtype=torch.float32).to(dtype)


def spans(b: int, s: int, g: int, n: int, s_kv: int, longest: int) -> torch.Tensor:
    start = torch.randint(-20, s_kv + 10, (b, s, g, n))
    found = torch.stack([start, start + torch.randint(-5, longest, start.shape)], -1)
    found[0, 0, 0] = 0
    return found.cuda()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("n", "h", "length", "d", "dv"),
    [
        (3, 1, 1, 64, 64),
        (5, 8, 77, 128, 128),
        (300, 17, 130, 64, 128),
        (4, 4, 5000, 128, 64),  # split
        (2, 3, 0, 64, 64),
        (600, 8, 16, 128, 128),
        (7, 40, 1000, 64, 64),
    ],
)
def test_rows(n, h, length, d, dv, dtype) -> None:
    q, k, v = randn(n, h, d, dtype=dtype), randn(n, length, d, dtype=dtype), None
    v = randn(n, length, dv, dtype=dtype)
    first, second = (cuda.selection_rows(q, k, v) for _ in range(2))
    oracle.assert_close(first, oracle.rows(q, k, v), dtype)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("b", "s", "g", "h", "s_kv", "n", "d", "dv"),
    [
        (1, 3, 2, 4, 150, 5, 64, 64),
        (2, 2, 1, 17, 700, 40, 128, 128),
        (1, 400, 2, 8, 900, 16, 128, 64),
        (1, 1, 2, 4, 9000, 128, 64, 128),  # split
        (1, 2, 1, 1, 1, 1, 64, 64),
    ],
)
def test_ranges(b, s, g, h, s_kv, n, d, dv, integers, dtype) -> None:
    q, k = randn(b, s, g, h, d, dtype=dtype), randn(b, g, s_kv, d, dtype=dtype)
    v = randn(b, g, s_kv, dv, dtype=dtype)
    r = spans(b, s, g, n, s_kv, 60).to(integers)
    kept = r.clone()
    first, second = (cuda.selection_ranges(q, k, v, r) for _ in range(2))
    oracle.assert_close(first, oracle.ranges(q, k, v, r), dtype)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(r, kept)


def test_inputs_that_are_not_contiguous() -> None:
    q, k, v = randn(4, 8, 64), randn(4, 2, 100, 64)[:, 1], randn(100, 4, 64).transpose(0, 1)
    oracle.assert_close(cuda.selection_rows(q, k, v), oracle.rows(q, k, v), torch.float16)


def test_keys_past_the_end_are_not_read() -> None:
    """The last tile is not full; what follows the row's keys in memory is NaN."""
    q, whole = randn(2, 4, 64), randn(2, 64, 64)
    whole[:, 37:] = float("nan")
    k = whole[:, :37]
    oracle.assert_close(cuda.selection_rows(q, k, k), oracle.rows(q, k, k), torch.float16)
    q = q[None, :, None]
    k = whole[:1, None]
    r = torch.tensor([[0, 20], [15, 37]], device="cuda").expand(1, 2, 1, 2, 2)
    clean = k.nan_to_num()
    oracle.assert_close(
        cuda.selection_ranges(q, k, k, r), oracle.ranges(q, clean, clean, r), torch.float16
    )


def test_large_logits_and_nan() -> None:
    q, k, v = randn(2, 4, 64), randn(2, 300, 64), randn(2, 300, 64)
    got = cuda.selection_rows(q, k, v, sm_scale=1e3)
    oracle.assert_close((got[0], got[1] / 1e3), _over(oracle.rows(q, k, v, 1e3)), torch.float16)
    k[1, 299] = float("nan")
    out, lse = cuda.selection_rows(q, k, v)
    assert out[0].isfinite().all() and out[1].isnan().all() and lse[1].isnan().all()


def _over(pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return pair[0], pair[1] / 1e3


@pytest.mark.parametrize("op", ["selection_rows", "selection_ranges"])
def test_cuda_graph(op) -> None:
    if op == "selection_rows":
        args = (randn(3, 8, 128), randn(3, 3000, 128), randn(3, 3000, 128))
        call, reference = cuda.selection_rows, oracle.rows
    else:
        args = (randn(2, 2, 2, 8, 64), randn(2, 2, 3000, 64), randn(2, 2, 3000, 64))
        args = (*args, spans(2, 2, 2, 5, 3000, 900))
        call, reference = cuda.selection_ranges, oracle.ranges
    call(*args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call(*args)
    args[0].copy_(randn(*args[0].shape))
    graph.replay()
    oracle.assert_close(got, reference(*args), torch.float16)


def test_a_thread_that_has_not_called_cuda() -> None:
    args = (randn(3, 8, 128), randn(3, 100, 128), randn(3, 100, 128))
    cuda.selection_rows(*args)
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(cuda.selection_rows, *args).result()
    oracle.assert_close(got, oracle.rows(*args), torch.float16)
