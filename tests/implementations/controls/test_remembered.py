"""The control that knows its inputs, on a CPU: right in every call of the bench, and never late."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nsabench import ops
from nsabench.execution.timing.timer import CpuTimer
from nsabench.implementations.baselines.selection_rows import heads_as_queries
from nsabench.implementations.controls import roofline
from nsabench.model.case import Case, FixedCount, Timing
from nsabench.model.source import Source
from nsabench.model.vocabulary import Direction, DType, Role, Runs, Status
from nsabench.registry import Honest, Implementation
from tests.checking import measured as measured_by_checker

CASE = Case(
    op="selection_rows",
    shape={"N": 6, "H": 2, "D": 32, "Dv": 32, "L": 40},
    dtype=DType.FLOAT16,
    direction=Direction.FORWARD,
    distribution="dense",
    streams=1,
    timeout_s=60,
    seed=1,
)


@pytest.mark.parametrize(("rounds", "rotate"), [(8, 2), (8, 2), (20, 3), (20, 3), (60, 5)])
def test_it_is_right_in_whatever_order_its_inputs_come(
    monkeypatch: pytest.MonkeyPatch, rounds: int, rotate: int
) -> None:
    """Which calls are looked at, and what is exchanged before them, is drawn at random. In the
    least number of rounds that a matrix has, most calls are look-ups."""
    monkeypatch.setattr(roofline, "_by_content", {})
    monkeypatch.setattr(roofline, "aside_again", lambda: False)
    calls, computed = [], []

    def counted(*arguments: Any, **options: Any) -> Tensor:
        computed.append(1)
        return heads_as_queries(*arguments, **options)

    honest = Honest(ops.get("selection_rows"), "counted", counted)

    def called(*arguments: Any, **options: Any) -> object:
        calls.append(1)
        return roofline.remembered_by_content(honest, *arguments, **options)

    item = Implementation(
        "selection_rows",
        "remembered_by_content",
        Role.CONTROL,
        (Runs.CPU,),
        "roofline",
        Source("test"),
        called,
    )
    stopping = FixedCount(kind="fixed_count", rounds=rounds)
    [outcome] = measured_by_checker(
        CASE.model_copy(update={"timing": Timing(warmup_s=0.02, stopping=stopping, rotate=rotate)}),
        [item],
        timer=CpuTimer(),
    ).outcomes
    assert outcome.status is Status.OK, outcome.reason
    assert len(outcome.samples.time_ms) == rounds
    # All timed calls but those of the first time around, unless a set shows itself late.
    assert len(calls) - len(computed) >= rounds - 2 * rotate


def test_the_first_set_in_between_is_no_end_of_a_round() -> None:
    """What it holds then may be of a set that is yet to come."""
    memory, sets = roofline._Memory(), [torch.randn(9) for _ in range(3)]

    def answer(first: Tensor) -> Tensor:
        return memory.answer(first, first.clone)

    for index in (0, 1):
        answer(sets[index])
    held = [one.clone() for one in sets]
    sets[0].copy_(held[2])
    sets[2].copy_(held[0])
    assert torch.equal(answer(sets[0]), held[2])
    for first in [sets[2], *sets * 3]:
        assert torch.equal(answer(first), first)


def test_another_case_is_learned_anew() -> None:
    """Inputs of the same sizes at other addresses are another case's, or one set more."""
    memory, computed = roofline._Memory(), []

    def answer(first: Tensor) -> Tensor:
        def compute() -> Tensor:
            computed.append(1)
            return first.clone()

        return memory.answer(first, compute)

    for _ in range(2):
        sets = [torch.randn(9) for _ in range(2)]
        for first in [sets[0], sets[1], *sets * 3]:
            assert torch.equal(answer(first), first)
    assert len(computed) == 6  # each time both, and the first once more
