"""A baseline that is hopelessly behind is called a few times; the others are measured as ever."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nsabench.model.job import ALL_STAY, EarlyExit
from nsabench.model.measurement import Observation
from nsabench.model.vocabulary import Role, Status
from nsabench.registry import Implementation
from nsabench.worker import measure
from nsabench.worker.timing.timer import CpuTimer
from tests.checking import measured as measured_by_checker
from tests.worker.test_arm import CASE, honest
from tests.worker.test_arm import item as candidate

# So long that noise of a shared machine makes no other kernel hopeless.
QUICK_S, SLOW_S = 0.005, 0.1
CALLS = 1 + measure.ROUNDS  # held to the oracle, and by the timer
LEAST_MS = 20.0
calls = {"slow": 0}


def item(call: Callable[..., Tensor], name: str) -> Implementation:
    return candidate(call, name).model_copy(update={"role": Role.BASELINE})


def quick(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    time.sleep(QUICK_S)
    return honest(q, k, v, sm_scale=sm_scale)


def slow(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    calls["slow"] += 1
    time.sleep(SLOW_S)
    return honest(q, k, v, sm_scale=sm_scale)


def quicker(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return honest(q, k, v, sm_scale=sm_scale)


def wrong(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return quick(q, k, v, sm_scale=sm_scale) + 1


def broken(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    raise ValueError("it does not work")


def found(
    *given: Callable[..., Tensor],
    early_exit: EarlyExit | None = None,
    timer: CpuTimer | None = None,
) -> dict[str, Observation]:
    """early_exit: where it is not given, all are, and one of them stays."""
    calls["slow"] = 0
    names = tuple(call.__name__ for call in given)
    measured = measured_by_checker(
        CASE,
        [item(call, call.__name__) for call in given],
        timer=timer,
        early_exit=early_exit or EarlyExit(baselines=names),
    )
    assert [one.implementation for one in measured.observations] == list(names)
    return {one.implementation: one for one in measured.observations}


def is_measured(observation: Observation) -> bool:
    return (
        bool(observation.bursts.time_ms)
        and not observation.notes
        and observation.status is Status.OK
    )


def test_who_is_far_behind_is_not_looked_at_any_further() -> None:
    seen = found(slow, quick, wrong, broken)
    assert calls["slow"] == CALLS
    left = seen["slow"]
    assert left.status is Status.OK
    # Others are held to what it is off by, and that is measured here: in the main pass the process
    # was the candidate's.
    assert left.rel_l2 == seen["quick"].rel_l2 and left.worst_row_at
    assert len(left.samples.time_ms) == measure.ROUNDS and left.bursts.time_ms == []
    assert "over 5 times as long as those of a faster one" in left.notes[0]
    assert len(seen["quick"].samples.time_ms) > measure.ROUNDS and seen["quick"].bursts.time_ms
    assert [seen[one].status for one in ("wrong", "broken")] == [Status.WRONG, Status.CRASHED]


def test_who_is_wrong_makes_nobody_hopeless() -> None:
    seen = found(slow, wrong)
    assert seen["wrong"].status is Status.WRONG
    assert seen["slow"].rel_l2 is not None and seen["slow"].bursts.time_ms


def test_who_is_not_to_be_spared_is_measured_and_spares_nobody() -> None:
    """A candidate is what is asked of, however slow it is; and however quick, no baseline is
    hopeless beside it."""
    assert is_measured(found(slow, quick, early_exit=ALL_STAY)["slow"])
    for names in (("quick", "quicker"), ("slow", "quicker")):
        seen = found(slow, quick, quicker, early_exit=EarlyExit(baselines=names, stay=2))
        assert is_measured(seen["slow"]) and calls["slow"] > 2 * CALLS, names


def test_the_second_best_stays() -> None:
    """A check may reject the best one later."""
    early_exit = EarlyExit(baselines=("slow", "quick", "quicker"), stay=2, least_ms=LEAST_MS)
    seen = found(slow, quick, quicker, early_exit=early_exit)
    assert calls["slow"] == CALLS and not seen["slow"].bursts.time_ms
    assert is_measured(seen["quick"]) and is_measured(seen["quicker"])
    seen = found(
        slow, quick, wrong, early_exit=EarlyExit(baselines=("slow", "quick", "wrong"), stay=2)
    )
    assert is_measured(seen["slow"]), "one of two that were to stay is wrong"


def test_who_is_behind_and_quick_all_the_same_is_measured() -> None:
    """It is measured sooner than it is known to be behind."""
    names = ("slow", "quick")
    seen = found(slow, quick, early_exit=EarlyExit(baselines=names, least_ms=3e3 * SLOW_S))
    assert is_measured(seen["slow"]) and calls["slow"] > 2 * CALLS


def _nan(out: Tensor, q: Tensor) -> Tensor:
    return out.fill_(float("nan"))


def _off(out: Tensor, q: Tensor) -> Tensor:
    return out.add_(1)


def _writes(out: Tensor, q: Tensor) -> Tensor:
    q.fill_(0.5)
    return out


def _settings(out: Tensor, q: Tensor) -> Tensor:
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
    return out


def _raises(out: Tensor, q: Tensor) -> Tensor:
    raise ValueError("it does not work at first")


@pytest.mark.parametrize(
    ("does", "at"),
    [
        *((does, 1) for does in (_nan, _off, _writes, _settings, _raises)),
        (_settings, 2),
        (_raises, 2),
    ],
)
def test_what_fails_once_has_failed(does: Callable[[Tensor, Tensor], Tensor], at: int) -> None:
    """A later correct call does not undo the failure."""
    made = []

    def odd(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        made.append(1)
        out = quick(q, k, v, sm_scale=sm_scale)
        return does(out, q) if len(made) == at else out

    before = torch.backends.cudnn.benchmark
    seen = found(slow, odd)
    failed = Status.CRASHED if does is _raises else Status.WRONG
    assert seen["odd"].status is failed and is_measured(seen["slow"])
    assert torch.backends.cudnn.benchmark == before


@pytest.mark.parametrize("other", [quick, slow])
def test_who_changes_settings_in_a_later_call_is_named_itself(other: Callable[..., Tensor]) -> None:
    """The kernel that runs next is not blamed."""
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
