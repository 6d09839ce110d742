"""Which backward launches of attention under a band go to the kernels for Hopper. What these
compute is tested on such a GPU (``gpu/test_band_hopper_backward_gpu.py``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from nsa_kernels.band import backward, hopper, hopper_backward
from nsa_kernels.band.backward import band_backward
from nsa_kernels.band.config import Tiles
from nsa_kernels.band.geometry import Band
from nsa_kernels.launch.device import Device
from nsa_kernels.launch.gated import Gated

T, HQ, H, D = 4096, 16, 4, 128
WINDOW, COMPRESSED = Band(1, 1, 512), Band(32, 16, 0)
BOTH, OF_TRITON = {"launch_dq", "launch_dkv"}, {"band_dq_kernel", "band_dkv_kernel"}


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (hopper, hopper_backward, backward):
        monkeypatch.setattr(module, "device_limits", lambda device: Device(132, 227 * 1024))
    monkeypatch.setattr(hopper, "runs_gluon", lambda device: True)


def drawn(
    t: int = T,
    hq: int = HQ,
    d: int = D,
    dtype: torch.dtype = torch.bfloat16,
    batches: int = 1,
) -> tuple[torch.Tensor, ...]:
    """q, k, v and the gradient of the sum."""
    return tuple(
        torch.empty(batches, t, heads, d, dtype=dtype, device="meta") for heads in (hq, H, H, hq)
    )


def launched(
    monkeypatch: pytest.MonkeyPatch,
    tensors: tuple[torch.Tensor, ...],
    band: Band,
    gated: bool = True,
    tiles: tuple[Tiles, Tiles] | None = None,
) -> set[str]:
    """The names of what ``band_backward`` launches."""
    names: set[str] = set()

    def noted(name: str) -> Callable[..., None]:
        return lambda *arguments: names.add(name)

    def noted_kernel(kernel: Any, *arguments: Any, **constants: Any) -> None:
        names.add(kernel.fn.__name__)

    for name in BOTH:
        monkeypatch.setattr(hopper_backward, name, noted(name))
    monkeypatch.setattr(backward, "launch", noted_kernel)
    monkeypatch.setattr(backward, "add_shares", noted("add_shares"))
    q, k, v, grad = tensors
    lse, gate, rest = torch.empty(3, q.shape[0], q.shape[2], q.shape[1], device="meta")
    of = Gated(gate, rest, None) if gated else None
    band_backward(q, k, v, q, lse, grad, None, band, 0.1, tiles, of)
    return names - {"add_shares"}


@pytest.mark.parametrize("band", [WINDOW, COMPRESSED])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [{}, {"t": 4103}, {"batches": 2}])
def test_branches_of_a_gated_sum_go_there(band, dtype, sizes, monkeypatch) -> None:
    assert launched(monkeypatch, drawn(dtype=dtype, **sizes), band) == BOTH


def test_parts_of_one_projection_go_there() -> None:
    q, k, v = torch.empty(1, T, HQ + 2 * H, D, dtype=torch.bfloat16).split([HQ, H, H], 2)
    assert hopper_backward.fits(q, k, v, torch.empty_like(q), WINDOW)


def test_dk_and_dv_of_few_keys_go_to_triton(monkeypatch) -> None:
    """Each batch is a launch: two walks of 32 shares at most do not fill a device."""
    q, k, v, grad = drawn(batches=2)
    keys = (k[:, :255, :1], v[:, :255, :1])
    assert launched(monkeypatch, (q, *keys, grad), COMPRESSED) == {"launch_dq", "band_dkv_kernel"}


def test_dq_of_an_odd_group_goes_to_triton(monkeypatch) -> None:
    found = launched(monkeypatch, drawn(t=8192, hq=3 * H), WINDOW)
    assert found == {"band_dq_kernel", "launch_dkv"}


@pytest.mark.parametrize(
    "changed",
    [
        {"tensors": drawn(dtype=torch.float32)},
        {"tensors": drawn(d=64)},
        {"tensors": drawn(t=2048)},  # too few pieces of work
        {"tensors": drawn(t=1040, batches=4)},  # each batch is a launch
        {"tensors": (*drawn()[:3], torch.empty(1, 1, 1, 1, device="meta").expand(1, T, HQ, D))},
        {"tensors": (*drawn()[:3], drawn(dtype=torch.float32)[3])},
        {"tensors": (*drawn()[:3], drawn()[3].transpose(1, 2).contiguous().transpose(1, 2))},
        {"gated": False},
        {"tiles": (Tiles(64, 32, 4, 2), Tiles(32, 64, 4, 3))},
    ],
    ids=["float32", "D", "few", "few each", "expanded", "dtypes", "heads first", "alone", "tiles"],
)
def test_what_they_cannot_or_should_not_take_goes_to_triton(changed, monkeypatch) -> None:
    call = {"tensors": drawn(), "band": WINDOW, **changed}
    assert launched(monkeypatch, **call) == OF_TRITON


def test_packed_sequences_go_to_triton(monkeypatch) -> None:
    table = torch.empty(2, T, dtype=torch.int32, device="meta")
    band = Band(1, 1, 512, table, table, 3)
    assert launched(monkeypatch, drawn(), band) == OF_TRITON
