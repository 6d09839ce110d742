"""Tricks that only start once the timed calls have begun, and one that watches its inputs."""

from random import Random

import pytest
from torch import Tensor

from nsabench.failure import Failure
from nsabench.implementations.baselines.selection_rows import heads_as_queries
from nsabench.model.vocabulary import Role, Runs, Status
from nsabench.registry import Implementation
from tests.checking import arm_of, observations, rounds, sets_of

HONEST_CALLS = 3  # as many as are made before anything is timed


def control(call) -> Implementation:
    return Implementation(
        "selection_rows", "cheat", Role.CONTROL, (Runs.CPU,), "parity", "test", call
    )


class NotWatched(Random):
    """Chance that never picks a call to look at."""

    def random(self) -> float:
        return 1.0


def test_a_mutation_in_an_unwatched_call_is_not_blamed_on_another(shipped, make_case):
    case = make_case()
    sets = sets_of(case)

    def mutate(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        return heads_as_queries(q, k.mul_(2), v, sm_scale)

    cheat = arm_of(control(mutate), case, sets, NotWatched())
    cheat.inspect(2, cheat.prepare(2)())
    honest = arm_of(shipped["sdpa_gqa"], case, sets, Random(0))
    for _ in range(6):  # round 1 is always watched
        try:
            honest.inspect(1, honest.prepare(1)())
        except Failure as failure:
            pytest.fail(f"the honest one is accused: {failure.reason}")


def test_a_failure_in_a_timed_call_is_diagnosed_on_the_inputs_it_was_made_from(shipped, make_case):
    timing = rounds(40, warmup_s=0.001)
    calls = 0

    def truncate(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        nonlocal calls
        calls += 1
        keys = 64 if calls > HONEST_CALLS else k.shape[1]
        return heads_as_queries(q, k[:, :keys], v[:, :keys], sm_scale)

    for _ in range(3):
        calls = 0
        some = [control(truncate), shipped["sdpa_gqa"], shipped["bmm_softmax"]]
        observation, *_ = observations(make_case(timing=timing), some)
        assert observation.status is Status.WRONG
        assert "attends to the first 64 of 256 keys" in observation.diagnosis
