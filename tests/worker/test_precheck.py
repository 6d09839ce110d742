"""A baseline that is far behind another one is called a few times. Others are measured fully."""

import time
from collections import Counter

import pytest
import torch

from nsabench.implementations.baselines.selection_rows import gqa
from nsabench.model.job import EarlyExit
from nsabench.model.vocabulary import Role, Status
from nsabench.worker import case_measurement
from tests.checking import measured, registered
from tests.worker.test_arm import CASE

# Seconds that baselines sleep, so long that the noise of a shared machine decides nothing.
SLEEP_S = {"slow": 0.1, "quick": 0.005, "quicker": 0.0, "wrong": 0.005, "odd": 0.005}
CALLS = 1 + case_measurement.ROUNDS  # one call for the oracle, and the timed ones


def found(*names, changed=lambda call, out, q: out, **early_exit):
    """Return the observations of baselines, and how often each was called.

    early_exit: fields of `EarlyExit`; by default, all may leave. changed: what the baseline `odd`
    returns.
    """
    calls = Counter()

    def call_of(name):
        def call(q, k, v, *, sm_scale):
            calls[name] += 1
            time.sleep(SLEEP_S[name])
            out = gqa(q, k, v, sm_scale) + (name == "wrong")
            return changed(calls[name], out, q) if name == "odd" else out

        return registered(CASE.op, name, call, Role.BASELINE)

    leaving = EarlyExit(**{"baselines": names, **early_exit})
    found = measured(CASE, [call_of(name) for name in names], early_exit=leaving)
    assert [one.implementation for one in found.observations] == [*names]
    return {one.implementation: one for one in found.observations}, calls


def is_measured(observation):
    is_right = observation.status is Status.OK
    return is_right and bool(observation.bursts.time_ms) and not observation.notes


def fails_at(at, change):
    """Return a change of the output of call number `at`."""
    return lambda call, out, q: change(out, q) if call == at else out


def raises(out, q):
    raise ValueError("it does not work")


def sets(out, q):
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
    return out


def writes(out, q):
    q.fill_(0.5)
    return out


def test_who_is_far_behind_is_not_looked_at_any_further():
    seen, calls = found("slow", "quick", "wrong", "odd", changed=fails_at(1, raises))
    assert calls["slow"] == CALLS
    left = seen["slow"]
    assert left.status is Status.OK
    # The errors are measured here: the main pass ran in the candidate's process.
    assert left.rel_l2 == seen["quick"].rel_l2 and left.worst_row_at
    assert len(left.samples.time_ms) == case_measurement.ROUNDS and left.bursts.time_ms == []
    assert "over 5 times as long as a faster baseline" in left.notes[0]
    assert (
        len(seen["quick"].samples.time_ms) > case_measurement.ROUNDS
        and seen["quick"].bursts.time_ms
    )
    assert [seen[one].status for one in ("wrong", "odd")] == [Status.WRONG, Status.CRASHED]


@pytest.mark.parametrize(
    ("names", "early_exit"),
    [
        # No baseline may leave: a candidate is measured however slow it is.
        (("slow", "quick"), {"baselines": ()}),
        (("slow", "quick", "quicker"), {"baselines": ("quick", "quicker"), "stay": 2}),
        (("slow", "quick", "quicker"), {"baselines": ("slow", "quicker"), "stay": 2}),
        # A call of `slow` takes less than `least_ms`.
        (("slow", "quick"), {"least_ms": 3e3 * SLEEP_S["slow"]}),
        # A wrong baseline does not make another one leave, and is not one of two that stay.
        (("slow", "wrong"), {}),
        (("slow", "quick", "wrong"), {"stay": 2}),
    ],
)
def test_a_baseline_that_stays_is_measured(names, early_exit):
    seen, calls = found(*names, **early_exit)
    assert is_measured(seen["slow"]) and calls["slow"] > 2 * CALLS


def test_the_second_best_stays():
    """A check may reject the best one later."""
    seen, calls = found("slow", "quick", "quicker", stay=2, least_ms=20.0)
    assert calls["slow"] == CALLS and not seen["slow"].bursts.time_ms
    assert is_measured(seen["quick"]) and is_measured(seen["quicker"])


@pytest.mark.parametrize(
    ("change", "at"),
    [
        (lambda out, q: out.fill_(float("nan")), 1),
        (lambda out, q: out.add_(1), 1),
        *((change, at) for change in (sets, raises) for at in (1, 2)),
        (writes, 1),
    ],
)
def test_what_fails_once_has_failed(change, at):
    """A later correct call does not undo the failure, and the kernel that runs next is not
    blamed."""
    before = torch.backends.cudnn.benchmark
    seen, _ = found("odd", "slow", changed=fails_at(at, change))
    assert seen["odd"].status is (Status.CRASHED if change is raises else Status.WRONG)
    assert is_measured(seen["slow"]), seen["slow"].reason
    assert torch.backends.cudnn.benchmark == before
