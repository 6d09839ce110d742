"""What baselines keep between calls."""

from __future__ import annotations

import pytest
import torch

from nsabench.implementations.torch_attention.memoised import memoised


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
