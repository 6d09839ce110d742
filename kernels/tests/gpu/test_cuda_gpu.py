"""The CUDA C++ kernels on a GPU: right on every kind of shape, equal in two calls, in graphs."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

pytest.importorskip("cuda.core")

from cases import captured, check, make, normal, random_spans
from nsa_kernels import cuda
from nsa_kernels.selection.ranges.naive import naive_ranges
from nsa_kernels.selection.rows.naive import naive_rows

HALVES = [torch.float16, torch.bfloat16]


CALLS = {
    "selection_rows": (cuda.selection_rows, naive_rows),
    "selection_ranges": (cuda.selection_ranges, naive_ranges),
}


def is_right(name, got, tensors, **options):
    exact = [x.double() if x.is_floating_point() else x for x in tensors]
    check(name, got, CALLS[name][1](*exact, **options), got[0].dtype)


def check_case(name, integers=torch.int32, **sizes):
    """Assert that two calls equal each other and the formula, and change no input."""
    tensors = make(name, **sizes).tensors
    if "ranges" in tensors:
        tensors["ranges"] = tensors["ranges"].to(integers)
    kept = {key: x.clone() for key, x in tensors.items()}
    first, second = (CALLS[name][0](**tensors) for _ in range(2))
    is_right(name, first, tensors.values())
    assert all(map(torch.equal, first, second))
    assert all(torch.equal(x, kept[key]) for key, x in tensors.items())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("n", "h", "length", "d", "dv"),
    [
        (3, 1, 1, 64, 64),
        (5, 8, 77, 128, 128),
        (300, 17, 130, 64, 128),
        (4, 4, 5000, 128, 64),  # split among programs
        (2, 3, 0, 64, 64),
        (600, 8, 16, 128, 128),
        (7, 40, 1000, 64, 64),
    ],
)
def test_rows(n, h, length, d, dv, dtype):
    check_case("selection_rows", t=n, hq=h, n=length, d=d, dv=dv, dtype=dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("b", "s", "g", "h", "s_kv", "n", "d", "dv"),
    [
        (1, 3, 2, 4, 150, 5, 64, 64),
        (2, 2, 1, 17, 700, 40, 128, 128),
        (1, 400, 2, 8, 900, 16, 128, 64),
        (1, 1, 2, 4, 9000, 128, 64, 128),  # split among programs
        (1, 2, 1, 1, 1, 1, 64, 64),
    ],
)
def test_ranges(b, s, g, h, s_kv, n, d, dv, integers, dtype):
    sizes = {"b": b, "t": s, "hq": g * h, "h": g, "n": s_kv, "spans": n, "d": d, "dv": dv}
    check_case("selection_ranges", integers, **sizes, dtype=dtype)


draw = normal(torch.float16)


def test_inputs_that_are_not_contiguous():
    x = draw(4, 8, 64), draw(4, 2, 100, 64)[:, 1], draw(100, 4, 64).transpose(0, 1)
    is_right("selection_rows", cuda.selection_rows(*x), x)


def test_keys_past_the_end_are_not_read():
    """The last tile is not full, and NaN follows the row's keys in memory."""
    q, whole = draw(2, 4, 64), draw(2, 64, 64)
    whole[:, 37:] = float("nan")
    k = whole[:, :37]
    is_right("selection_rows", cuda.selection_rows(q, k, k), (q, k, k))
    q, k = q[None, :, None], whole[:1, None]
    r = torch.tensor([[0, 20], [15, 37]], device="cuda").expand(1, 2, 1, 2, 2)
    clean = k.nan_to_num()
    is_right("selection_ranges", cuda.selection_ranges(q, k, k, r), (q, clean, clean, r))


def test_large_logits_and_nan():
    q, k, v = draw(2, 4, 64), draw(2, 300, 64), draw(2, 300, 64)
    out, lse = cuda.selection_rows(q, k, v, sm_scale=1e3)
    want, want_lse = naive_rows(*(x.double() for x in (q, k, v)), sm_scale=1e3)
    check("selection_rows", (out, lse / 1e3), (want, want_lse / 1e3), torch.float16)
    k[1, 299] = float("nan")
    out, lse = cuda.selection_rows(q, k, v)
    assert out[0].isfinite().all() and out[1].isnan().all() and lse[1].isnan().all()


ARGUMENTS = {
    "selection_rows": lambda: (draw(3, 8, 128), draw(3, 3000, 128), draw(3, 3000, 128)),
    "selection_ranges": lambda: (
        *(draw(2, 2, 2, 8, 64), draw(2, 2, 3000, 64), draw(2, 2, 3000, 64)),
        random_spans(2, 2, 2, 40, keys=3000),
    ),
}


@pytest.mark.parametrize("op", CALLS)
def test_cuda_graph(op):
    call, args = CALLS[op][0], ARGUMENTS[op]()
    graph, got = captured(lambda: call(*args))
    args[0].copy_(draw(*args[0].shape))
    graph.replay()
    is_right(op, got, args)


def test_a_thread_that_has_not_called_cuda():
    args = ARGUMENTS["selection_rows"]()
    cuda.selection_rows(*args)
    with ThreadPoolExecutor(1) as pool:
        is_right("selection_rows", pool.submit(cuda.selection_rows, *args).result(), args)
