"""Which calls of block scores go to the kernel for Hopper, and how its work is cut into pieces.
What it computes is tested on such a GPU (``gpu/test_scores_hopper_gpu.py``)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from nsa_kernels.band.geometry import Band
from nsa_kernels.launch.device import Device
from nsa_kernels.scoring import block_scores as module
from nsa_kernels.scoring import hopper
from nsa_kernels.scoring.block_scores import ScoreTiles, block_scores

T, HQ, H, D = 4096, 16, 4, 128
Pair = tuple[torch.Tensor, torch.Tensor]
BAND = Band(32, 16, 0)


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "runs_gluon", lambda device: True)
    monkeypatch.setattr(hopper, "device_limits", lambda device: Device(132, 227 * 1024))


def drawn(
    t: int = T,
    d: int = D,
    n: int = T // 16 - 1,
    hq: int = HQ,
    h: int = H,
    dtype: torch.dtype = torch.bfloat16,
) -> Pair:
    q = torch.empty(1, t, hq, d, dtype=dtype, device="meta")
    return q, torch.empty(1, n, h, d, dtype=dtype, device="meta")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_long_sequences_of_wide_heads_go_there(dtype: torch.dtype) -> None:
    assert hopper.fits(*drawn(dtype=dtype), BAND, 64)
    room = torch.empty(1, T, HQ + 2 * H, D, dtype=dtype)  # of one projection
    assert hopper.fits(room[:, :, :HQ], drawn(dtype=dtype)[1], BAND, 64)


@pytest.mark.parametrize(
    "tensors",
    [
        lambda: drawn(dtype=torch.float32),
        lambda: drawn(d=64),
        lambda: drawn(t=4032),  # too few pieces of work
        lambda: drawn(n=3),
        lambda: drawn(hq=12),  # of three heads a group
        lambda: drawn(hq=4),
        lambda: (drawn()[0].transpose(1, 2).contiguous().transpose(1, 2), drawn()[1]),
        lambda: (drawn()[0], drawn(n=1)[1].expand(1, 255, H, D)),
        lambda: tuple(torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape) for x in drawn()),
    ],
    ids=["float32", "D", "queries", "keys", "three", "one", "heads first", "broadcast", "address"],
)
def test_what_it_cannot_or_should_not_take_goes_to_triton(tensors: Callable[[], Pair]) -> None:
    assert not hopper.fits(*tensors(), BAND, 64)


def test_blocks_of_other_sizes_and_packed_sequences_go_to_triton() -> None:
    assert not hopper.fits(*drawn(), BAND, 32)
    assert not hopper.fits(*drawn(), Band(16, 16, 0), 64)
    table = torch.empty(2, T, dtype=torch.int32, device="meta")
    assert not hopper.fits(*drawn(), Band(32, 16, 0, table, table, 3), 64)


def test_who_has_tiles_of_its_own_goes_to_triton_and_who_needs_all_blocks_clears_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[str] = []
    monkeypatch.setattr(hopper, "launch_scores", lambda *_: taken.append("hopper"))
    monkeypatch.setattr(module, "launch", lambda *_, **__: taken.append("triton"))
    monkeypatch.setattr(module, "clear", lambda _: taken.append("clear"))
    q, k = drawn()
    lse = torch.empty(1, HQ, T, device="meta")
    block_scores(q, k, lse, BAND, 64, 0.1, visible=True)
    block_scores(q, k, lse, BAND, 64, 0.1)
    block_scores(q, k, lse, BAND, 64, 0.1, visible=True, tiles=ScoreTiles(32, 64, 4, 1))
    cu = torch.empty(2, dtype=torch.int32, device="meta")
    block_scores(q, k, lse, BAND, 64, 0.1, cu, cu, visible=True)
    assert taken == ["hopper", "clear", "hopper", "triton", "triton"]


@pytest.mark.parametrize("t", [1, 64, 1984, 3968, 3969, 4096, 20001])
def test_pieces_are_tiles_of_queries_with_the_pairs_that_they_see(t: int) -> None:
    seen = sum(tile // hopper.PAIR + 1 for tile in range(-(-t // hopper.ROWS)))
    assert hopper.pieces_of(t, 3) == 3 * seen
