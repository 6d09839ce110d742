"""The work of many cases is counted on all cores, once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.case import Case
from nsabench.model.vocabulary import Direction, DType
from nsabench.ops import _block_draws, selection_blocks

SIZES = {"B": 1, "HQ": 4, "H": 4, "D": 16, "Dv": 16, "S": 16, "block_size": 64}


def case(tokens: int, direction: Direction = Direction.FORWARD, seed: int = 0) -> Case:
    return Case.model_validate(
        {
            "op": "selection_blocks",
            "shape": {**SIZES, "T": tokens},
            "dtype": DType.BFLOAT16,
            "direction": direction,
            "distribution": "random",
            "seed": seed,
            "streams": 1,
            "timeout_s": 60.0,
        }
    )


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file with a line for each selection that is drawn: the process, and its tokens."""
    log, draw = tmp_path / "drawn", _block_draws.indices

    def indices(
        distribution: str, batches: int, position: _block_draws.Ints, *others: int
    ) -> _block_draws.Ints:
        with log.open("a") as file:
            file.write(f"{os.getpid()} {len(position)}\n")
        return draw(distribution, batches, position, *others)

    log.touch()
    monkeypatch.setattr(_block_draws, "indices", indices)
    monkeypatch.setattr(ops, "_works", {})
    for cached in (selection_blocks._counts, selection_blocks._selection):
        cached.cache_clear()
    return log


def test_it_is_the_same_as_of_one(drawn: Path) -> None:
    tokens = (8192, 8200, 8300, 8400)
    cases = [case(t, d) for d in selection_blocks.OP.directions for t in tokens]
    few = case(512)
    ops.count([*cases, few])
    lines = [line.split() for line in drawn.read_text().splitlines()]
    assert sorted(int(of) for _, of in lines) == list(tokens), "each once, and the small one not"
    if len(os.sched_getaffinity(0)) > 1:
        assert str(os.getpid()) not in {process for process, _ in lines}
    at_hand = [ops.work(one) for one in cases]
    assert len(drawn.read_text().splitlines()) == len(lines)
    ops._works.clear()
    assert at_hand == [ops.work(one) for one in cases]


def test_what_cannot_be_drawn_says_so() -> None:
    dense = {"distribution": "dense"}
    wrong = [case(8192, seed=seed).model_copy(update=dense) for seed in range(5)]
    with pytest.raises(UsageError, match="selects all 128 blocks"):
        ops.count(wrong)
