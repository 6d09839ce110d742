"""A baseline that is hopelessly behind is called four times; whoever is not is measured as ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nsabench.execution.protocol import Measure
from nsabench.execution.supervisor.executor import GroupLost, WorkerExecutor
from nsabench.execution.timing.timer import Call, CpuTimer, Timed
from nsabench.execution.worker import arm, glance
from nsabench.execution.worker.guard import guarded
from nsabench.execution.worker.measure import measure
from nsabench.execution.worker.session import Session
from nsabench.model.case import Case
from nsabench.model.measurement import Outcome
from nsabench.model.vocabulary import L2, Role, Status
from nsabench.registry import Implementation
from tests.execution.worker.test_arm import CASE, honest
from tests.execution.worker.test_arm import item as candidate

# So long that a machine that others use makes nobody else hopeless.
QUICK_S, SLOW_S = 0.005, 0.1
WARM = CASE.model_copy(update={"l2": L2.WARM})
CALLS = 2 + glance.ROUNDS  # held to the oracle, by the host's clock, and by the timer
calls = {"slow": 0}


def item(call: Callable[..., Tensor], name: str) -> Implementation:
    return replace(candidate(call, name), role=Role.BASELINE)


def quick(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    time.sleep(QUICK_S)
    return honest(q, k, v, sm_scale=sm_scale)


def slow(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    calls["slow"] += 1
    time.sleep(SLOW_S)
    return honest(q, k, v, sm_scale=sm_scale)


def wrong(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return quick(q, k, v, sm_scale=sm_scale) + 1


def broken(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    raise ValueError("it does not work")


def found(
    *given: Callable[..., Tensor],
    best_only: bool = True,
    case: Case = CASE,
    timer: CpuTimer | None = None,
    candidates: tuple[str, ...] = (),
) -> dict[str, Outcome]:
    calls["slow"] = 0
    roles = dict.fromkeys(candidates, candidate)
    measured = measure(
        case,
        [roles.get(call.__name__, item)(call, call.__name__) for call in given],
        device="cpu",
        session=7,
        timer=timer or CpuTimer(),
        sensors=None,
        report=lambda step: None,
        best_only=best_only,
    )
    assert [one.implementation for one in measured.outcomes] == [call.__name__ for call in given]
    return {one.implementation: one for one in measured.outcomes}


@pytest.mark.parametrize("case", [CASE, WARM], ids=["cold", "warm"])
def test_who_is_far_behind_is_not_looked_at_any_further(case: Case) -> None:
    seen = found(slow, quick, wrong, broken, case=case)
    assert calls["slow"] == CALLS
    left = seen["slow"]
    assert (left.status, left.session) == (Status.OK, 7)
    # Others are held to what it is off by, and that is measured here: in the first look the process
    # was the candidate's.
    assert left.rel_l2 == seen["quick"].rel_l2 and left.worst_row_at
    assert len(left.samples.time_ms) == glance.ROUNDS and left.bursts.time_ms == []
    assert "over 5 times as long as the best" in left.notes[0]
    assert len(seen["quick"].samples.time_ms) > glance.ROUNDS and seen["quick"].bursts.time_ms
    assert [seen[one].status for one in ("wrong", "broken")] == [Status.WRONG, Status.CRASHED]


def test_who_is_wrong_makes_nobody_hopeless() -> None:
    seen = found(slow, wrong)
    assert seen["wrong"].status is Status.WRONG
    assert seen["slow"].rel_l2 is not None and seen["slow"].bursts.time_ms


def test_beside_candidates_only_a_baseline_is_left_out() -> None:
    """A candidate is what is asked of, however slow it is."""
    left = found(slow, quick, best_only=False)["slow"]
    assert calls["slow"] == CALLS and "left out" in left.notes[0]
    seen = found(slow, quick, best_only=False, candidates=("slow",))["slow"]
    assert calls["slow"] > 2 * CALLS and seen.bursts.time_ms and not seen.notes


def test_a_candidate_makes_no_baseline_hopeless() -> None:
    seen = found(slow, quick, best_only=False, candidates=("quick",))["slow"]
    assert calls["slow"] > 2 * CALLS and seen.bursts.time_ms and not seen.notes


def test_who_is_behind_and_quick_all_the_same_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside candidates: it is measured sooner than it is known to be behind."""
    monkeypatch.setattr("nsabench.execution.worker.measure.WORTH_S", 3 * SLOW_S)
    seen = found(slow, quick, best_only=False)["slow"]
    assert calls["slow"] > 2 * CALLS and seen.bursts.time_ms and not seen.notes
    assert found(slow, quick)["slow"].notes


def test_the_first_call_is_that_of_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    """It compiles, and is what an implementation's compilation is said to take."""
    made: list[str] = []
    first_call = arm.CaseArm.first_call

    def counted(self: arm.CaseArm) -> None:
        made.append(self.name)
        first_call(self)

    monkeypatch.setattr(arm.CaseArm, "first_call", counted)
    seen = found(quick, honest, best_only=False, candidates=("honest",))
    assert sorted(made) == ["honest", "quick"]
    assert all(one.compile_s is not None for one in seen.values())


def test_nothing_waits_for_the_device_within_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard does, and on a GPU the events would then hold the host's time."""
    inside = []

    class Watched(CpuTimer):
        def sample(self, arm: str, call: Call, retry: Callable[[], Call] | None = None) -> Timed:
            inside.append(arm)
            try:
                return super().sample(arm, call, retry)
            finally:
                inside.pop()

    def watched(*given: Any) -> Any:
        assert not inside
        return guarded(*given)

    monkeypatch.setattr(arm, "guarded", watched)
    assert found(slow, quick, timer=Watched())["quick"].status is Status.OK


def test_what_an_arm_overwrote_is_healed_for_the_next() -> None:
    def writes(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        out = quick(q, k, v, sm_scale=sm_scale)
        q.fill_(float("nan"))
        return out

    seen = found(writes, quick)
    assert seen["quick"].status is Status.OK, seen["quick"].reason
    assert seen["writes"].status is Status.WRONG


@pytest.mark.parametrize("other", [quick, slow])
def test_who_changes_settings_in_a_later_call_is_named_itself(other: Callable[..., Tensor]) -> None:
    """And not whoever is looked at next."""
    made = []

    def changes(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        made.append(1)
        if len(made) == 2:
            torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
        time.sleep(QUICK_S * 4)
        return honest(q, k, v, sm_scale=sm_scale)

    before = torch.backends.cudnn.benchmark
    seen = found(changes, other)
    assert seen[other.__name__].status is Status.OK, seen[other.__name__].reason
    assert torch.backends.cudnn.benchmark == before


def test_what_the_supervisor_asks_for_reaches_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items = {(CASE.op, call.__name__): item(call, call.__name__) for call in (slow, quick)}
    session = Session("cpu", CpuTimer(), None, items)
    executor = WorkerExecutor("cpu")
    asked: list[Measure] = []

    def ask(request: Measure, *_: Any) -> Any:
        asked.append(request)
        raise GroupLost("", Status.CRASHED, "enough is seen", "")

    monkeypatch.setattr(executor, "_ask", ask)
    for executor.best_only in (False, True):
        with pytest.raises(GroupLost):
            executor.measure(CASE, ["slow", "quick"], 3)
    assert [one.best_only for one in asked] == [False, True]
    monkeypatch.setattr("nsabench.execution.worker.measure.WORTH_S", 3 * SLOW_S)
    notes = [session.measure(one, lambda step: None).outcomes[0].notes for one in asked]
    assert [bool(one) for one in notes] == [False, True]
