"""The main launch in Gluon (``selection/blocks/kernels/hopper.py``): what it takes, and whether it
compiles. What it computes only a Hopper shows (``gpu/test_blocks_hopper_gpu.py``)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compiled import compiled
from nsa_kernels.jit.compat import TRITON_VERSION
from nsa_kernels.selection.blocks.config import hopper_fits

MATRIX = """\
op: selection_blocks
axes: {dtype: [float16, bfloat16, float32], D: [64, 128], H: [2, 8], B: 1, T: 16384, HQ: 32, S: 16}
"""


def tensors(hq=16, h=4, d=128, dv=128, dtype=torch.bfloat16, n=70):
    return tuple(torch.zeros(n, x, width, dtype=dtype) for x, width in ((hq, d), (h, d), (h, dv)))


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"dtype": torch.float16},
        {"d": 64},
        {"dv": 64},
        {"d": 64, "dv": 64},
        {"n": 1},
        *({"hq": group, "h": 1} for group in (1, 2, 8, 16, 64)),
    ],
)
def test_what_fits(sizes) -> None:
    assert hopper_fits(*tensors(**sizes), 64)
    assert not hopper_fits(*tensors(**sizes), 32)


@pytest.mark.parametrize(
    "sizes",
    [
        {"dtype": torch.float32},
        {"d": 256},
        {"dv": 32},
        {"d": 80},
        {"hq": 12},
        {"hq": 128, "h": 1},
    ],
)
def test_what_does_not(sizes) -> None:
    assert not hopper_fits(*tensors(**sizes), 64)


@pytest.mark.parametrize("which", range(3))
def test_rows_must_be_copied_in_16_bytes(which: int) -> None:
    def changed(to) -> bool:
        qkv = list(tensors())
        n, heads, width = qkv[which].shape
        room = torch.zeros(n, heads, 2 * width + 16, dtype=torch.bfloat16)
        qkv[which] = to(room, width)
        assert qkv[which].shape == (n, heads, width)
        return hopper_fits(*qkv, 64)

    assert changed(lambda room, width: room[..., :width])
    assert changed(lambda room, width: room[..., 8 : 8 + width])
    assert changed(lambda room, width: room[:, :1, :width].expand(-1, room.shape[1], -1))
    assert not changed(lambda room, width: room[..., 4 : 4 + width])
    assert not changed(lambda room, width: room[..., : 2 * width : 2])
    # 16 bytes, but Triton is told only of multiples of 16 elements.
    assert not changed(lambda room, width: room[..., :-8].contiguous()[..., :width])


@pytest.mark.skipif(TRITON_VERSION[:2] != (3, 6), reason="Gluon of another Triton")
def test_it_compiles_for_hopper_and_nothing_else_has_it(tmp_path: Path) -> None:
    found = {}
    for row in compiled(tmp_path, MATRIX, "sm_89,sm_90"):
        if row["implementation"] == "blocks" and row["kernel"].endswith("forward_kernel"):
            dtype = row["signature"].partition("*")[2].partition(" ")[0]
            found.setdefault((row["architecture"], row["kernel"], dtype), []).append(row)
    of_hopper = "sm_90", "hopper_forward_kernel"
    assert ("sm_90", "forward_kernel", "float32") in found
    assert found.keys() >= {("sm_89", "forward_kernel", x) for x in ("float16", "bfloat16")}
    assert {x for x in found if x[1] == of_hopper[1]} == {
        (*of_hopper, x) for x in ("float16", "bfloat16")
    }
    for dtype in ("float16", "bfloat16"):
        rows = found[*of_hopper, dtype]
        assert len(rows) == 4  # D and the group
        for row in rows:
            # Four programs share a multiprocessor.
            assert row["occupancy"] == 0.25 and row["spill_bytes"] <= 16, row
