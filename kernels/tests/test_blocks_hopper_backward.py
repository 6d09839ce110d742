"""The main launch of the backward of blocks in Gluon
(``selection/blocks/kernels/hopper_backward.py``): which arguments it takes, and whether it
compiles. What it computes only a Hopper shows (``gpu/test_blocks_hopper_backward_gpu.py``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled import compiled
from nsa_kernels.jit.compat import TRITON_VERSION
from nsa_kernels.launch.gated import Gated
from nsa_kernels.selection.blocks import backward
from nsa_kernels.selection.blocks.config import BlockConfig, hopper_backward_fits
from nsa_kernels.selection.blocks.plan import build_plan
from triton.runtime.jit import KernelInterface

Tensors = tuple[torch.Tensor, ...]
D, SCALE = 128, 128**-0.5
GROUPS = (1, 2, 4, 8, 16, 32, 64)
MATRIX = """\
op: selection_blocks
axes: {dtype: [float16, bfloat16], direction: backward, D: [64, 128], H: [2, 8], B: 1, T: 16384,
  HQ: 32, S: 16}
"""
SHARED_BYTES = 227 << 10  # what a program may have on Hopper


def tensors(
    hq: int = 16, h: int = 4, d: int = D, dv: int = D, dtype: Any = torch.bfloat16, n: int = 70
) -> Tensors:
    """q, k, v, lse and the gradient of the output, on no device."""
    room = [(hq, d), (h, d), (h, dv), (hq, dv)]
    q, k, v, do = (torch.empty(n, *x, dtype=dtype, device="meta") for x in room)
    return q, k, v, torch.empty(n, hq, device="meta"), do


@pytest.mark.parametrize(
    "sizes", [{}, {"dtype": torch.float16}, {"n": 1}, *({"hq": group, "h": 1} for group in GROUPS)]
)
def test_what_fits(sizes) -> None:
    assert hopper_backward_fits(*tensors(**sizes), 64)
    assert not hopper_backward_fits(*tensors(**sizes), 32)


@pytest.mark.parametrize(
    "sizes",
    [
        {"dtype": torch.float32},
        {"d": 64},
        {"dv": 64},
        {"d": 64, "dv": 64},
        {"hq": 12},
        {"hq": 128, "h": 1},
        {"n": (1 << 20) + 1},  # offsets of more than 32 bits
    ],
)
def test_what_does_not(sizes) -> None:
    assert not hopper_backward_fits(*tensors(**sizes), 64)


def test_heads_must_be_rows_at_multiples_of_16_bytes() -> None:
    def changed(which: int, to: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        of = list(tensors())
        n, heads, width = of[which].shape
        room = torch.zeros(n, heads + 1, 2 * width + 16, dtype=torch.bfloat16)
        of[which] = to(room)[:, :heads]
        assert of[which].shape == (n, heads, width)
        return hopper_backward_fits(*of, 64)

    for which in (0, 4):
        assert changed(which, lambda room: room[..., :D])
        assert changed(which, lambda room: room[..., 8 : 8 + D])
        assert not changed(which, lambda room: room[..., 4 : 4 + D])
        assert not changed(which, lambda room: room[..., : 2 * D : 2])
        assert not changed(which, lambda room: room[:, :1, :D].expand(-1, 16, -1))
        # A token is 17 and a half heads behind the one before.
        assert not changed(
            which, lambda room: room.as_strided((70, 16, D), (17 * D + D // 2, D, 1))
        )
        # Heads first: they are not rows one after another, but tokens are.
        assert not changed(
            which, lambda room: torch.zeros(16, 70, D, dtype=room.dtype).transpose(0, 1)
        )
    assert changed(1, lambda room: room[..., :D])
    assert not hopper_backward_fits(*tensors()[:4], tensors(dtype=torch.float16)[4], 64)


def noted(monkeypatch: pytest.MonkeyPatch, of: Tensors, block_size: int = 64) -> list[Any]:
    """Kernel and arguments of what ``block_major_backward`` launches first on a Hopper."""
    found: list[Any] = []
    monkeypatch.setattr(backward, "runs_gluon", lambda device: True)
    q, k, v, lse, do = of
    n, h = k.shape[:2]
    index = torch.zeros(1, n, h, 3, dtype=torch.int32)
    with monkeypatch.context() as patch:

        def note(kernel: Any, grid: Any) -> Any:
            return lambda *x, **options: found.append((kernel, grid, *x, options))

        patch.setattr(KernelInterface, "__getitem__", note)
        plan = build_plan(index, None, block_size, 32, cleared=False)
        gated = Gated(lse, lse, None)
        backward.block_major_backward(
            q, k, v, do, lse, do, plan, SCALE, h, BlockConfig(64, 64, 4, None), gated
        )
    return next(x for x in found if x[0].fn.__name__.endswith("backward_kernel"))


def test_nothing_else_has_it(monkeypatch) -> None:
    for of in (tensors(d=64, dv=64), tensors(12, 4), tensors(dtype=torch.float32)):
        assert noted(monkeypatch, of)[0] is backward.backward_kernel
    assert noted(monkeypatch, tensors(), 32)[0] is backward.backward_kernel
    monkeypatch.undo()
    assert not backward.runs_gluon(torch.device("cpu"))


@pytest.mark.skipif(TRITON_VERSION[:2] != (3, 6), reason="Gluon of another Triton")
def test_it_compiles_for_hopper_and_nothing_else_has_its_kernel(tmp_path: Path) -> None:
    found: dict[tuple[str, str], list[Any]] = {}
    for row in compiled(tmp_path, MATRIX, "sm_89,sm_90"):
        if row["implementation"] == "blocks" and row["kernel"].endswith("backward_kernel"):
            found.setdefault((row["architecture"], row["kernel"]), []).append(row)
    assert {of: len(rows) for of, rows in found.items()} == {
        ("sm_89", "backward_kernel"): 8,
        ("sm_90", "backward_kernel"): 4,  # D = 64
        ("sm_90", "hopper_backward_kernel"): 4,
    }
    for row in found["sm_90", "hopper_backward_kernel"]:
        assert " D=" not in row["constants"] and row["status"] == "ok"
        assert row["shared_bytes"] <= SHARED_BYTES and row["spill_bytes"] <= 256, row
