"""What torch has, as the baselines take it: what is kept between calls, shared heads, tiles."""

from __future__ import annotations

import pytest
import torch

from nsabench.implementations.torch_attention import memoised
from tests.implementations.stand_ins import assert_right, drawn, registered, uncompiled_flex

SLIDING = {"B": 5, "T": 90, "HQ": 4, "H": 2, "D": 16}
COMPRESSED = {**SLIDING, "block": 32, "stride": 16}
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


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    ("op", "sizes", "distribution"),
    [
        ("sliding_window", {**SLIDING, "window": 1}, "packed"),
        ("sliding_window", {**SLIDING, "window": 300}, "packed"),
        ("sliding_window", {**SLIDING, "B": 2, "T": 400, "window": 300}, "packed"),
        ("sliding_window", {**SLIDING, "B": 2, "window": 40}, "dense"),
        ("compressed", COMPRESSED, "packed"),
        ("compressed", COMPRESSED, "dense"),
        ("selection_ranges", RANGES, "mixed"),
        ("selection_blocks", BLOCKS, "random"),
        ("selection_blocks", {**BLOCKS, "T": 384}, "packed"),
    ],
)
def test_masks_and_block_masks_are_right(
    monkeypatch: pytest.MonkeyPatch, op: str, sizes: dict[str, int], distribution: str
) -> None:
    uncompiled_flex(monkeypatch)
    inputs = drawn(op, distribution, **sizes)
    for name in ("masked_sdpa", "flex_attention"):
        assert_right(registered(op, name), op, inputs)
