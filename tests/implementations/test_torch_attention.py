"""What torch has, as the baselines take it: what is kept between calls, shared heads, tiles."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations import torch_attention
from nsabench.implementations.baselines import selection_rows, sliding_window
from nsabench.implementations.torch_attention import TILE, memoised
from tests.implementations.stand_ins import assert_right, drawn, registered, uncompiled_flex

SLIDING = {"B": 5, "T": 90, "HQ": 4, "H": 2, "D": 16}
RANGES = {"B": 2, "S": 40, "G": 2, "H": 4, "D": 16, "S_kv": 256, "n_spans": 3, "L": 60}
BLOCKS = {"B": 1, "T": 256, "HQ": 4, "H": 2, "D": 16, "S": 2, "block_size": 32}


def test_as_much_is_kept_as_is_said() -> None:
    made = []

    @memoised(2)
    def get(size: int) -> list[int]:
        made.append(size)
        return [size]

    assert [get(size) for size in (1, 1, 2, 1, 3, 1, 3)] == [[1], [1], [2], [1], [3], [1], [3]]
    assert made == [1, 2, 3, 1]


@pytest.mark.parametrize("capturing", [False, True])
def test_what_a_graph_holds_is_not_kept_and_all_else_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capturing: bool
) -> None:
    waits: list[None] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(None))
    get = memoised(2)(lambda size: [size])
    assert (get(1) is get(1)) != capturing
    assert len(waits) == (not capturing)


def test_before_torch_2_5_heads_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = torch.randn(2, 3, 16), torch.randn(2, 8, 16)
    expected = selection_rows.bmm_softmax(q, k, k, sm_scale=0.25)
    torch.testing.assert_close(selection_rows.gqa(q, k, k, 0.25), expected)
    monkeypatch.setattr(torch_attention, "SHARES_HEADS", False)
    with pytest.raises(Unsupported, match="cannot share K and V"):
        selection_rows.gqa(q, k, k, 0.25)
    assert torch_attention.sharing(False) == {}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    ("op", "sizes", "distribution"),
    [
        ("sliding_window", {**SLIDING, "window": 1}, "packed"),
        ("sliding_window", {**SLIDING, "window": 300}, "packed"),
        ("sliding_window", {**SLIDING, "B": 2, "T": 400, "window": 300}, "packed"),
        ("sliding_window", {**SLIDING, "B": 2, "window": 40}, "dense"),
        ("selection_ranges", RANGES, "mixed"),
        ("selection_blocks", BLOCKS, "random"),
        ("selection_blocks", {**BLOCKS, "T": 384}, "packed"),
    ],
)
def test_block_masks_of_flex_attention_are_right(
    monkeypatch: pytest.MonkeyPatch, op: str, sizes: dict[str, int], distribution: str
) -> None:
    uncompiled_flex(monkeypatch)
    assert_right(registered(op, "flex_attention"), op, drawn(op, distribution, **sizes))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("window", [1, 100, 128, 500])
def test_tiles_of_packed_windows_leave_nothing_out(window: int, seed: int) -> None:
    sizes = {**SLIDING, "T": 150, "window": window}
    inputs = drawn("sliding_window", "packed", seed=seed, **sizes)
    cu, t = inputs.tensors["cu_seqlens"], 750
    lo, hi = sliding_window._bounds(cu, t, window)
    partial, full = (x[0, 0] for x in torch_attention.band_tiles(lo, hi, t))
    at = torch.arange(t)
    seen = (at < hi.unsqueeze(1)) & (at >= lo.unsqueeze(1))
    assert not (partial & full).any()
    for tile, (some, whole) in enumerate(zip(partial.flatten(), full.flatten(), strict=True)):
        part = _tile(seen, *divmod(tile, partial.shape[1]))
        assert bool(some | whole) == bool(part.any())
        assert bool(whole) == bool(part.all() and part.shape == (TILE, TILE))


def _tile(x: Tensor, row: int, column: int) -> Tensor:
    return x[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]
