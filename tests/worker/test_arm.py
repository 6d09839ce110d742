"""Who is blamed for an input that changed, and what a case leaves for the next."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from random import Random

import pytest
import torch
from torch import Tensor

from nsabench.case import Case, Timing
from nsabench.failure import Failure
from nsabench.implementations.sdpa import gqa
from nsabench.registry import Implementation
from nsabench.timing.timer import CpuTimer
from nsabench.words import Direction, DType, Role, Runs
from nsabench.worker.arm import CaseArm
from nsabench.worker.calls import Answer
from nsabench.worker.inputs import InputSets
from nsabench.worker.measure import measure

CASE = Case(
    op="selection_rows",
    shape={"N": 6, "H": 2, "D": 32, "Dv": 32, "L": 40},
    dtype=DType.FLOAT16,
    direction=Direction.FORWARD,
    distribution="dense",
    streams=1,
    timeout_s=60,
    seed=1,
    timing=Timing(rotate=3),
)


def honest(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return gqa(q, k, v, sm_scale)


def item(call: Callable[..., Tensor] = honest) -> Implementation:
    return Implementation("selection_rows", "mine", Role.CANDIDATE, (Runs.CPU,), "", "test", call)


def arm_on(sets: InputSets) -> CaseArm:
    return CaseArm(item(), CASE, "cpu", sets, Random(0))


def damage(sets: InputSets, *indices: int) -> None:
    for index in indices:
        sets.sets[index].tensors["q"].add_(1.0)


def test_an_ordered_call_is_not_blamed_for_what_others_changed_unseen() -> None:
    """Its data come from a set that this arm's own calls were not compared on."""
    sets = InputSets(CASE, "cpu")
    arm = arm_on(sets)
    arm.check()
    damage(sets, *range(1, len(sets)))
    arm.finish()
    assert sets.somebody_writes


def test_all_sets_are_repaired_when_one_is_found_changed() -> None:
    """Calls at once each have a set of their own, and the first that is compared ends it."""
    sets = InputSets(CASE, "cpu")
    arm = arm_on(sets)
    damage(sets, 0, 1)
    answers = [Answer(i, {"output": torch.zeros(1)}) for i in (0, 1)]
    with pytest.raises(Failure, match="it changed its input q"):
        arm._compare(answers, "")
    assert not sets.changed(1)
    assert not sets.somebody_writes


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class ForgetfulTimer(CpuTimer):
    forgot = 0

    def forget(self) -> None:
        self.forgot += 1


@pytest.mark.usefixtures("uncollected")
def test_a_case_finds_nothing_of_those_before_it() -> None:
    """A failure's traceback holds its frames, and they the inputs and the graphs of the case."""

    def fails(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        raise ValueError("not today")

    timer = ForgetfulTimer()
    for call in (fails, honest):
        measure(
            CASE,
            [item(call)],
            device="cpu",
            session=1,
            timer=timer,
            sensors=None,
            report=lambda step: None,
        )
    assert timer.forgot == 2
    assert not [thing for thing in gc.get_objects() if type(thing) in (CaseArm, InputSets)]
