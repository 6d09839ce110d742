"""Which calls go to the kernels for Hopper: attention under a band, its backward, and block scores.
Their results are tested on such a GPU (``gpu/test_*_hopper*_gpu.py``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled import compiled
from nsa_kernels.band import backward, hopper, hopper_backward
from nsa_kernels.band.backward import band_backward
from nsa_kernels.band.config import Tiles
from nsa_kernels.band.geometry import Band
from nsa_kernels.jit.compat import TRITON_VERSION
from nsa_kernels.launch.device import Device, runs_gluon
from nsa_kernels.launch.gated import Gated
from nsa_kernels.scoring import block_scores as module
from nsa_kernels.scoring import hopper as scoring
from nsa_kernels.scoring.block_scores import ScoreTiles, block_scores
from triton.runtime.jit import KernelInterface

T, HQ, H, D = 4096, 16, 4, 128
WINDOW, COMPRESSED = Band(1, 1, 512), Band(32, 16, 0)
BOTH, OF_TRITON = {"launch_dq", "launch_dkv"}, {"band_dq_kernel", "band_dkv_kernel"}
HALVES = [torch.bfloat16, torch.float16]
Tensors = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    for of in (hopper, hopper_backward, backward, scoring):
        monkeypatch.setattr(of, "device_limits", lambda device: Device(132, 227 * 1024))
    for of in (hopper, scoring):
        monkeypatch.setattr(of, "runs_gluon", lambda device: True)


def drawn(
    t: int = T,
    d: int = D,
    n: int | None = None,
    hq: int = HQ,
    dtype: torch.dtype = torch.bfloat16,
    b: int = 1,
) -> Tensors:
    """Return q, k, v and the gradient of the output, on no device."""
    sizes = ((t, hq), (t if n is None else n, H), (t if n is None else n, H), (t, hq))
    return tuple(torch.empty(b, *size, d, dtype=dtype, device="meta") for size in sizes)


def in_one(dtype: torch.dtype = torch.bfloat16) -> Tensors:
    """Return parts of what one projection gives: rows are longer than their heads."""
    return torch.empty(1, T, HQ + 2 * H, D, dtype=dtype).split([HQ, H, H], 2)


def heads_first(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def shifted(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor of this shape 2 or 4 bytes behind an aligned address."""
    return torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)


def table() -> torch.Tensor:
    return torch.empty(2, T, dtype=torch.int32, device="meta")


@pytest.mark.parametrize("dtype", HALVES)
def test_long_sequences_of_wide_heads_go_there(dtype) -> None:
    for band in (WINDOW, COMPRESSED):
        assert hopper.fits(*drawn(dtype=dtype)[:3], band)
        assert hopper.fits(*in_one(dtype), band)
    q, k, *_ = drawn(n=255, dtype=dtype)
    assert scoring.fits(q, k, COMPRESSED, 64)
    assert scoring.fits(in_one(dtype)[0], k, COMPRESSED, 64)
    q, k, v = in_one(dtype)
    assert hopper_backward.fits(q, k, v, torch.empty_like(q), WINDOW)


@pytest.mark.parametrize(
    "tensors",
    [
        lambda: drawn(dtype=torch.float32),
        lambda: drawn(d=64),
        lambda: drawn(t=3072),  # too few pieces of work
        lambda: drawn(n=63),
        lambda: (*drawn()[:2], drawn(d=64)[2]),
        lambda: (heads_first(drawn()[0]), *drawn()[1:]),
        lambda: tuple(x.expand(1, T, x.shape[2], D) for x in drawn(t=1, n=1)),  # rows of one token
        lambda: tuple(map(shifted, drawn())),
        # On Hopper each batch would be a launch of few programs.
        lambda: drawn(t=128, b=64),
    ],
    ids=["float32", "D", "queries", "keys", "Dv", "heads-first", "broadcast", "address", "batches"],
)
def test_bands_that_go_to_triton(tensors: Callable[[], Tensors]) -> None:
    assert not hopper.fits(*tensors()[:3], WINDOW)


@pytest.mark.parametrize(
    "tensors",
    [
        lambda: drawn(n=255, dtype=torch.float32),
        lambda: drawn(n=255, d=64),
        lambda: drawn(n=255, t=4032),  # too few pieces of work
        lambda: drawn(n=3),
        lambda: drawn(n=255, hq=12),  # of three heads a group
        lambda: drawn(n=255, hq=4),
        lambda: (heads_first(drawn()[0]), drawn(n=255)[1]),
        lambda: (drawn()[0], drawn(n=1)[1].expand(1, 255, H, D)),
        lambda: tuple(map(shifted, drawn(n=255))),
    ],
    ids=["float32", "D", "queries", "keys", "three", "one", "heads-first", "broadcast", "address"],
)
def test_scores_that_go_to_triton(tensors: Callable[[], Tensors]) -> None:
    assert not scoring.fits(*tensors()[:2], COMPRESSED, 64)


def test_packed_sequences_and_blocks_of_other_sizes_go_to_triton() -> None:
    q, k, v, _ = drawn()
    assert not hopper.fits(q, k, v, Band(1, 1, 512, table(), table(), 3))
    q, k, *_ = drawn(n=255)
    assert not scoring.fits(q, k, COMPRESSED, 32)
    assert not scoring.fits(q, k, Band(16, 16, 0), 64)
    assert not scoring.fits(q, k, Band(32, 16, 0, table(), table(), 3), 64)


def test_nothing_runs_gluon_elsewhere() -> None:
    assert not runs_gluon(torch.device("cpu"))


def test_scores_of_given_tiles_are_tritons_and_those_of_all_blocks_are_cleared_first(
    monkeypatch,
) -> None:
    taken: list[str] = []
    monkeypatch.setattr(scoring, "launch_scores", lambda *_: taken.append("hopper"))
    monkeypatch.setattr(
        KernelInterface, "__getitem__", lambda *_: lambda *_, **__: taken.append("triton")
    )
    monkeypatch.setattr(module, "clear", lambda _: taken.append("clear"))
    q, k, *_ = drawn(n=255)
    given = q, k, torch.empty(1, HQ, T, device="meta"), COMPRESSED, 64, 0.1
    block_scores(*given, visible=True)
    block_scores(*given)
    block_scores(*given, visible=True, tiles=ScoreTiles(32, 64, 4, 1))
    cu = torch.empty(2, dtype=torch.int32, device="meta")
    block_scores(*given, cu, cu, visible=True)
    assert taken == ["hopper", "clear", "hopper", "triton", "triton"]


@pytest.mark.parametrize("t", [1, 64, 1984, 3968, 3969, 4096, 20001])
def test_pieces_are_tiles_of_queries_with_the_pairs_that_they_see(t: int) -> None:
    seen = sum(tile // scoring.PAIR + 1 for tile in range(-(-t // scoring.ROWS)))
    assert scoring.pieces_of(t, 3) == 3 * seen


def launched(
    monkeypatch: pytest.MonkeyPatch,
    tensors: Tensors,
    band: Band = WINDOW,
    gated: bool = True,
    tiles: tuple[Tiles, Tiles] | None = None,
) -> set[str]:
    """Return the names of what ``band_backward`` launches."""
    names: set[str] = set()

    def noted(name: str) -> Callable[..., None]:
        return lambda *arguments: names.add(name)

    def noted_kernel(kernel: Any, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **constants: names.add(kernel.fn.__name__)

    for name in BOTH:
        monkeypatch.setattr(hopper_backward, name, noted(name))
    monkeypatch.setattr(KernelInterface, "__getitem__", noted_kernel)
    monkeypatch.setattr(backward, "add_shares", noted("add_shares"))
    q, k, v, grad = tensors
    lse, gate, rest = torch.empty(3, q.shape[0], q.shape[2], q.shape[1], device="meta")
    of = Gated(gate, rest, None) if gated else None
    band_backward(q, k, v, q, lse, grad, None, band, 0.1, tiles, of)
    return names - {"add_shares"}


@pytest.mark.parametrize("band", [WINDOW, COMPRESSED])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("sizes", [{}, {"t": 4103}, {"b": 2}])
def test_backwards_of_branches_of_a_gated_sum_go_there(band, dtype, sizes, monkeypatch) -> None:
    assert launched(monkeypatch, drawn(dtype=dtype, **sizes), band) == BOTH


def test_dk_and_dv_of_few_keys_go_to_triton(monkeypatch) -> None:
    """Each batch is a launch: two walks of 32 shares at most do not fill a device."""
    q, k, v, grad = drawn(b=2)
    given = (q, k[:, :255, :1], v[:, :255, :1], grad)
    assert launched(monkeypatch, given, COMPRESSED) == {"launch_dq", "band_dkv_kernel"}


def test_dq_of_an_odd_group_goes_to_triton(monkeypatch) -> None:
    found = launched(monkeypatch, drawn(t=8192, hq=3 * H))
    assert found == {"band_dq_kernel", "launch_dkv"}


@pytest.mark.parametrize(
    "changed",
    [
        {"tensors": drawn(dtype=torch.float32)},
        {"tensors": drawn(d=64)},
        {"tensors": drawn(t=2048)},  # too few pieces of work
        {"tensors": drawn(t=1040, b=4)},  # each batch is a launch
        {"tensors": (*drawn()[:3], torch.empty(1, 1, 1, 1, device="meta").expand(1, T, HQ, D))},
        {"tensors": (*drawn()[:3], drawn(dtype=torch.float32)[3])},
        {"tensors": (*drawn()[:3], heads_first(drawn()[3]))},
        {"gated": False},
        {"tiles": (Tiles(64, 32, 4, 2), Tiles(32, 64, 4, 3))},
        {"band": Band(1, 1, 512, table(), table(), 3)},
    ],
    ids=[
        "float32",
        "D",
        "few",
        "few-each",
        "expanded",
        "dtypes",
        "heads-first",
        "alone",
        "tiles",
        "packed",
    ],
)
def test_backwards_that_go_to_triton(changed, monkeypatch) -> None:
    assert launched(monkeypatch, **{"tensors": drawn(), **changed}) == OF_TRITON


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
