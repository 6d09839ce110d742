"""Tensors that a kernel copies in boxes: what the compiled launcher is given in their place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nsa_kernels.jit.direct import Direct
from nsa_kernels.launch import boxes
from nsa_kernels.launch.boxes import Box, Boxed, described, taken_apart
from nsa_kernels.launch.launcher import launch

BOX = Box((100, 256), 512, (64, 128))
OTHER = Box((7, 128), 128, (8, 128))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The descriptors that are made."""
    calls: list[Any] = []

    def descriptor(kind: Any, address: int, shape: Any, strides: Any) -> tuple[Any, ...]:
        calls.append((kind["name"], address, shape, strides))
        return (f"descriptor {address}", *shape, *strides)

    monkeypatch.setattr(boxes, "descriptor", descriptor)
    return calls


def test_addresses_become_descriptors_which_are_made_once(made: list[Any]) -> None:
    of = Direct(print, (), ({"name": "q"}, {"name": "out"}))
    arguments = described(of, (BOX, None, OTHER))
    wanted = ("descriptor 16", 100, 256, 512, 1, 32, "descriptor 48", 7, 128, 128, 1)
    assert arguments([16, 32, 48]) == wanted
    assert made == [("q", 16, (100, 256), (512, 1)), ("out", 48, (7, 128), (128, 1))]
    assert arguments([16, 64, 48]) == (*wanted[:5], 64, *wanted[6:]) and len(made) == 2
    arguments([48, 32, 48])  # an address of one argument says nothing of another's
    assert len(made) == 3 and made[2][:2] == ("q", 48)


def test_descriptors_do_not_pile_up(made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes, "MOST", 2)
    arguments = described(Direct(print, (), ({"name": "q"},)), (BOX,))
    for address in (16, 32, 16, 48, 16):
        assert arguments([address])[0] == f"descriptor {address}"
    assert [address for _, address, *_ in made] == [16, 32, 48, 16]


def test_of_a_launch_without_boxes_nothing_is_kept() -> None:
    x = torch.zeros(2)
    assert taken_apart([x, Boxed(x, BOX)])[1] == (None, BOX)
    assert taken_apart([x, x]) == ((x, x), ())


def test_triton_is_given_what_describes_a_tensor() -> None:
    pytest.importorskip("triton.experimental.gluon.nvidia.hopper")
    given: list[Any] = []

    class Kernel:
        pre_run_hooks: tuple[Any, ...] = ()

        def __getitem__(self, grid: Any) -> Any:
            return lambda *arguments, **constants: given.append((grid, arguments, constants))

    x, y = torch.zeros(100, 512, dtype=torch.bfloat16), torch.zeros(3)
    launch(Kernel(), (5,), Boxed(x, BOX), y, 7, D=128)
    [(grid, (of_x, of_y, number), constants)] = given
    assert (grid, number, constants) == ((5,), 7, {"D": 128}) and of_y is y
    assert of_x.base is x and (of_x.shape, of_x.strides) == ([100, 256], [512, 1])
    assert of_x.block_shape == [64, 128] and of_x.layout.swizzle_byte_width == 128
