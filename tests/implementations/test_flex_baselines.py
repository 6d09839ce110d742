"""FlexAttention's block masks, with FlexAttention as it is uncompiled on a CPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from nsabench import ops
from nsabench.implementations.baselines import selection_blocks as blocks_baselines
from nsabench.implementations.baselines import selection_ranges as ranges_baselines
from nsabench.implementations.baselines import sliding_window as sliding_baselines
from nsabench.implementations.torch_attention import flex as _flex
from nsabench.model.vocabulary import DType
from tests.implementations.stand_ins import uncompiled_flex

SLIDING = {"B": 5, "T": 90, "HQ": 4, "H": 2, "D": 16}
RANGES = {"B": 2, "S": 40, "G": 2, "H": 4, "D": 16, "S_kv": 256, "n_spans": 3, "L": 60}
BLOCKS = {"B": 1, "T": 256, "HQ": 4, "H": 2, "D": 16, "S": 2, "block_size": 32}
CASES = [
    (sliding_baselines, "sliding_window", {**SLIDING, "window": 1}, "packed"),
    (sliding_baselines, "sliding_window", {**SLIDING, "window": 300}, "packed"),
    (sliding_baselines, "sliding_window", {**SLIDING, "B": 2, "T": 400, "window": 300}, "packed"),
    (sliding_baselines, "sliding_window", {**SLIDING, "B": 2, "window": 40}, "dense"),
    (ranges_baselines, "selection_ranges", RANGES, "mixed"),
    (blocks_baselines, "selection_blocks", BLOCKS, "random"),
    (blocks_baselines, "selection_blocks", {**BLOCKS, "T": 384}, "packed"),
]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("baselines", "op", "sizes", "distribution"), CASES)
def test_block_masks_are_right(
    monkeypatch: pytest.MonkeyPatch,
    baselines: ModuleType,
    op: str,
    sizes: dict[str, int],
    distribution: str,
) -> None:
    uncompiled_flex(monkeypatch, baselines)
    of = ops.get(op)
    shape = of.shape_model.model_validate(sizes)
    inputs = of.draw(shape, DType.FLOAT32, distribution, seed=3, device="cpu")
    tensors = inputs.tensors.values()
    found = baselines.flex_attention(*tensors, **inputs.options)
    torch.testing.assert_close(found.double(), of.oracle(inputs), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("window", [1, 100, 128, 500])
def test_tiles_of_packed_windows_leave_nothing_out(window: int, seed: int) -> None:
    of = ops.get("sliding_window")
    shape = of.shape_model.model_validate({**SLIDING, "T": 150, "window": window})
    inputs = of.draw(shape, DType.FLOAT32, "packed", seed=seed, device="cpu")
    cu, t = inputs.tensors["cu_seqlens"], 750
    lo, hi = sliding_baselines._bounds(cu, t, window)
    partial, full = (x[0, 0] for x in _flex.band_tiles(lo, hi, t))
    at = torch.arange(t)
    seen = (at < hi.unsqueeze(1)) & (at >= lo.unsqueeze(1))
    assert not (partial & full).any()
    for tile, (some, whole) in enumerate(zip(partial.flatten(), full.flatten(), strict=True)):
        part = _tile(seen, *divmod(tile, partial.shape[1]))
        assert bool(some | whole) == bool(part.any())
        assert bool(whole) == bool(part.all() and part.shape == (_flex.TILE, _flex.TILE))


def _tile(x: Tensor, row: int, column: int) -> Tensor:
    size = _flex.TILE
    return x[row * size : (row + 1) * size, column * size : (column + 1) * size]
