"""Who is hopelessly behind is called three times, and whoever is not is measured as ever."""

from __future__ import annotations

import time
from functools import partial

from torch import Tensor

from nsabench.execution.timing.timer import CpuTimer
from nsabench.execution.worker import glance
from nsabench.execution.worker.measure import measure
from nsabench.model.measurement import Outcome
from nsabench.model.vocabulary import Status
from tests.execution.worker.test_arm import CASE, honest, item

SLOW_S = 0.05
calls = {"slow": 0}


def slow(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    calls["slow"] += 1
    time.sleep(SLOW_S)
    return honest(q, k, v, sm_scale=sm_scale)


def wrong(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return honest(q, k, v, sm_scale=sm_scale) + 1


def broken(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    raise ValueError("it does not work")


def found(*, glances: bool) -> dict[str, Outcome]:
    calls["slow"] = 0
    measured = measure(
        CASE,
        [item(call, call.__name__) for call in (slow, honest, wrong, broken)],
        device="cpu",
        session=7,
        timer=CpuTimer(),
        sensors=None,
        report=lambda step: None,
        glances=glances,
    )
    assert [one.implementation for one in measured.outcomes] == ["slow", "honest", "wrong", "broken"]
    return {one.implementation: one for one in measured.outcomes}


def test_who_is_far_behind_is_not_looked_at_any_further() -> None:
    seen = found(glances=True)
    assert calls["slow"] == 1 + glance.CALLS
    left = seen["slow"]
    assert (left.status, left.session, left.rel_l2) == (Status.OK, 7, None)
    assert min(left.samples.time_ms) > SLOW_S * 1e3 and left.bursts.time_ms == []
    assert "over 5 times as long as the best" in left.notes[0]
    assert len(seen["honest"].samples.time_ms) > glance.CALLS and seen["honest"].bursts.time_ms
    assert [seen[one].status for one in ("wrong", "broken")] == [Status.WRONG, Status.CRASHED]


def test_elsewhere_everybody_is_measured() -> None:
    left = found(glances=False)["slow"]
    assert calls["slow"] > 10 and left.rel_l2 is not None and left.bursts.time_ms


def test_nobody_is_the_best_of_none() -> None:
    look = partial(glance.hopeless, session=1, timer=CpuTimer(), report=lambda step: None)
    assert look([]) == {}
