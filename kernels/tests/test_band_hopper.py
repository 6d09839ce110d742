"""Which calls of attention under a band go to the kernel for Hopper. What it computes is tested on
such a GPU (``gpu/test_band_hopper_gpu.py``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from compiled import compiled
from nsa_kernels.band import hopper
from nsa_kernels.band.geometry import Band
from nsa_kernels.jit.compat import TRITON_VERSION
from nsa_kernels.launch.device import Device, runs_gluon

T, HQ, H, D = 4096, 16, 4, 128
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "runs_gluon", lambda device: True)
    monkeypatch.setattr(hopper, "device_limits", lambda device: Device(132, 227 * 1024))


def drawn(t: int = T, d: int = D, n: int = T, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    q = torch.empty(1, t, HQ, d, dtype=dtype, device="meta")
    k, v = (torch.empty(1, n, H, d, dtype=dtype, device="meta") for _ in "kv")
    return q, k, v


def in_one(t: int = T) -> Tensors:
    """Parts of what one projection gives: rows are longer than their heads."""
    q, k, v = torch.empty(1, t, HQ + 2 * H, D, dtype=torch.bfloat16).split([HQ, H, H], 2)
    return q, k, v


WINDOW, COMPRESSED = Band(1, 1, 512), Band(32, 16, 0)


@pytest.mark.parametrize("band", [WINDOW, COMPRESSED])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_long_sequences_of_wide_heads_go_there(band: Band, dtype: torch.dtype) -> None:
    assert hopper.fits(*drawn(dtype=dtype), band)
    assert hopper.fits(*in_one(), band)


@pytest.mark.parametrize(
    "tensors",
    [
        lambda: drawn(dtype=torch.float32),
        lambda: drawn(d=64),
        lambda: drawn(t=3072),  # too few pieces of work
        lambda: drawn(n=63),
        lambda: (*drawn()[:2], drawn(d=64)[2]),
        lambda: (drawn()[0].transpose(1, 2).contiguous().transpose(1, 2), *drawn()[1:]),
        lambda: tuple(x.expand(1, T, x.shape[2], D) for x in drawn(t=1, n=1)),  # rows of one token
        lambda: tuple(
            torch.empty(T * x.shape[2] * D + 1, dtype=x.dtype)[1:].view(x.shape) for x in drawn()
        ),
    ],
    ids=["float32", "D", "queries", "keys", "Dv", "heads first", "broadcast", "address"],
)
def test_what_it_cannot_or_should_not_take_goes_to_triton(
    tensors: Callable[[], Tensors],
) -> None:
    assert not hopper.fits(*tensors(), WINDOW)


def test_packed_sequences_go_to_triton() -> None:
    table = torch.empty(2, T, dtype=torch.int32, device="meta")
    assert not hopper.fits(*drawn(), Band(1, 1, 512, table, table, 3))


def test_many_short_sequences_go_to_triton_in_one_launch() -> None:
    """On Hopper each batch would be a launch of few programs."""
    shapes = ((64, 128, 8, D), (64, 128, 2, D), (64, 128, 2, D))
    q, k, v = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes)
    assert not hopper.fits(q, k, v, WINDOW)


def test_nothing_runs_gluon_elsewhere() -> None:
    assert not runs_gluon(torch.device("cpu"))


WHOLE = """
op: nsa_attention
axes: {dtype: bfloat16, direction: backward}
include:
  - {B: 1, T: 8192, HQ: 64, H: 4, D: 128, block: 32, stride: 16, block_size: 64, n_selected: 16,
     window: 512}
"""
SHARED_BYTES = 227 << 10  # what a program may have on Hopper


@pytest.mark.skipif(TRITON_VERSION[:2] != (3, 6), reason="Gluon of another Triton")
def test_all_kernels_of_the_whole_compile_and_fit(tmp_path: Path) -> None:
    found = {row["kernel"]: row for row in compiled(tmp_path, WHOLE, "sm_90")}
    bands = {f"band_hopper{of}_kernel" for of in ("", "_dq", "_dkv")}
    blocks = {"hopper_forward_kernel", "hopper_backward_kernel"}
    assert found.keys() >= {*bands, *blocks, "block_scores_hopper_kernel"}
    assert all(row["shared_bytes"] <= SHARED_BYTES for row in found.values())
