"""Tensors that a kernel copies in boxes: what the compiled launcher is given in their place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nsa_kernels.jit.direct import Direct
from nsa_kernels.launch import boxes
from nsa_kernels.launch.boxes import (
    Box,
    Boxed,
    boxed_heads,
    described,
    heads_in_rows,
    taken_apart,
)
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


@pytest.mark.parametrize(("begin", "heads"), [(0, 8), (8, 4), (12, 4)])
def test_heads_of_one_projection_are_rows_of_its_memory(begin: int, heads: int) -> None:
    """The last row is the last head of the last token: none lies behind the memory."""
    room = torch.arange(5 * 16 * 64).bfloat16().view(5, 16, 64)
    x = room[:, begin : begin + heads]
    box = boxed_heads(x, 4).box
    assert heads_in_rows(x) and (box.row, box.tile) == (64, (4, 64))
    rows = room.view(-1)[begin * 64 :].as_strided(box.shape, (box.row, 1))
    for token in range(5):
        assert torch.equal(rows[token * 16 :][:heads], x[token])
    assert len(rows) == 4 * 16 + heads


def test_heads_that_are_no_rows() -> None:
    room = torch.zeros(5, 16, 192, dtype=torch.bfloat16)
    assert heads_in_rows(room[..., 8:136]) and heads_in_rows(room[:1])
    no_rows = (
        room[..., 4:132],  # which begin at a multiple of 8 bytes
        room[..., ::2],
        room[:, :1].expand(-1, 16, -1),
        room.transpose(0, 1),
        room.view(-1).as_strided((5, 16, 64), (100 * 16, 96, 1)),  # 16 and two thirds a token
    )
    assert not any(heads_in_rows(x) for x in no_rows)


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
