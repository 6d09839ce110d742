"""Tensors on a device that is not the current one: every launcher must follow its tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two CUDA devices"
)

import nsa_kernels  # noqa: E402
from nsa_kernels import cuda  # noqa: E402

Tensors = tuple[torch.Tensor, ...]


def randn(*size: int) -> torch.Tensor:
    return torch.randn(size, dtype=torch.float16, device="cuda:1")


def ints(values: list[int], *size: int) -> torch.Tensor:
    found = torch.tensor(values, dtype=torch.int32, device="cuda:1")
    return found.expand(*size).contiguous() if size else found


def blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, index: torch.Tensor) -> Tensors:
    return nsa_kernels.block_selection_attention(q, k, v, index, return_lse=True)


def cases() -> dict[str, tuple[Callable[..., Tensors], Tensors]]:
    """Name, call and arguments; those that split rows launch a merge as well."""
    torch.manual_seed(0)
    rows = (randn(3, 8, 64), randn(3, 3000, 64), randn(3, 3000, 64))
    packed = (rows[0], randn(2701, 64), randn(2701, 64), ints([0, 2000, 2001, 2701]))
    spans = ints([5, 900, 700, 2000]).view(2, 2).expand(2, 3, 2, 2, 2).contiguous()
    ranges = (randn(2, 3, 2, 8, 64), randn(2, 2, 3000, 64), randn(2, 2, 3000, 64), spans)
    band = (randn(1, 500, 8, 64), randn(1, 500, 2, 64), randn(1, 500, 2, 64))
    keys = (band[0], randn(1, 30, 2, 64), randn(1, 30, 2, 64))
    caches = (randn(2, 2, 3000, 64), randn(2, 2, 3000, 64), randn(2, 2, 186, 64))
    many = (randn(1, 8192, 16, 64), randn(1, 8192, 1, 64), randn(1, 8192, 1, 64))
    some = [0, 3, 7, 2]

    def window(*x: torch.Tensor) -> Tensors:
        return nsa_kernels.sliding_window(*x, window=70)

    def step(*x: torch.Tensor) -> Tensors:
        return (nsa_kernels.decode_step(*x),)

    def per_head(*x: torch.Tensor) -> Tensors:
        return nsa_kernels.selection_rows_per_head(*x)

    return {
        "rows": (nsa_kernels.selection_rows, rows),
        "rows_per_head": (per_head, rows),
        "varlen": (nsa_kernels.selection_varlen, packed),
        "ranges": (nsa_kernels.selection_ranges, ranges),
        "window": (window, band),
        "compressed": (nsa_kernels.compressed_attention_with_scores, keys),
        "decode": (step, (randn(2, 8, 64), *caches, randn(2, 2, 186, 64), randn(2, 8, 3))),
        "blocks_few": (blocks, (*band, ints(some, 1, 500, 2, 4))),
        "blocks_many": (blocks, (*many, ints(some, 1, 8192, 1, 4))),
        "cuda_rows": (cuda.selection_rows, rows),
        "cuda_ranges": (cuda.selection_ranges, ranges),
    }


NAMES = list(cases()) if torch.cuda.is_available() and torch.cuda.device_count() > 1 else ["none"]
BACKWARD = ("ranges", "window", "compressed", "blocks_few", "blocks_many")


def run(name: str, backward: bool) -> Tensors:
    call, args = cases()[name]
    if not backward:
        return call(*args)
    leaves = [x.requires_grad_() for x in args[:3]]
    out, lse, *others = call(*leaves, *args[3:])
    return (*(x.detach() for x in (out, lse, *others)), *torch.autograd.grad(out.sum(), leaves))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_launches_go_where_the_tensors_are(name, backward) -> None:
    if backward and name not in BACKWARD:
        pytest.skip("has no backward")
    if name.startswith("cuda_"):
        pytest.importorskip("cuda.core")
    with torch.cuda.device(1):
        want = run(name, backward)
    torch.cuda.synchronize(1)
    # On the other device nothing may be queued: a spin there would hold it up.
    with torch.cuda.device(0):
        torch.cuda._sleep(2_000_000_000)
        got = run(name, backward)
        torch.cuda.synchronize(1)
        held = not torch.cuda.current_stream(0).query()
        assert torch.cuda.current_device() == 0
        torch.cuda.synchronize(0)
    assert held, "the work waited for the other device"
    for a, b in zip(got, want, strict=True):
        assert a.device.index == 1 and torch.equal(a, b)
