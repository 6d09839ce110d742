"""The work of many cases is counted on all cores, once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.case import Case
from nsabench.model.vocabulary import Direction, DType
from nsabench.ops import selection_blocks

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
    log, draw = tmp_path / "drawn", selection_blocks._counts.__wrapped__

    def counts(shape: selection_blocks.BlocksShape, distribution: str, seed: int) -> object:
        with log.open("a") as file:
            file.write(f"{os.getpid()} {shape.T}\n")
        return draw(shape, distribution, seed)

    log.touch()
    monkeypatch.setattr(selection_blocks, "_counts", counts)
    monkeypatch.setattr(ops, "_counted", {})
    return log


def test_it_is_the_same_as_of_one(drawn: Path) -> None:
    cases = [
        case(tokens, d)
        for tokens in (8192, 8200, 8300, 8400)
        for d in selection_blocks.OP.directions
    ]
    few = case(512)
    ops.count([*cases, few])
    lines = drawn.read_text().splitlines()
    assert {line.partition(" ")[2] for line in lines} == {"8192", "8200", "8300", "8400"}
    if len(os.sched_getaffinity(0)) > 1:
        assert str(os.getpid()) not in {line.partition(" ")[0] for line in lines}
    at_hand = [ops.work(one) for one in cases]
    assert drawn.read_text().splitlines() == lines
    ops._counted.clear()
    assert at_hand == [ops.work(one) for one in cases]


def test_what_cannot_be_drawn_says_so() -> None:
    dense = {"distribution": "dense"}
    wrong = [case(8192, seed=seed).model_copy(update=dense) for seed in range(5)]
    with pytest.raises(UsageError, match="selects all 128 blocks"):
        ops.count(wrong)
