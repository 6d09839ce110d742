"""Parity catches controls of selection_rows on the CPU, in the arm that calls them."""

from random import Random

import pytest

from nsabench.failure import Failure
from nsabench.implementations.baselines.selection_rows import heads_as_queries
from nsabench.model.vocabulary import Role, Status
from tests.checking import arm_of, desk_of, observations, registered, rounds, sets_of

UNTIMED_CALLS = 3  # before anything is timed


@pytest.mark.parametrize("seed", range(6))
def test_a_remembered_output_is_caught_for_every_seed(make_arm, make_case, seed):
    with pytest.raises(Failure, match="mean absolute error"):
        make_arm("cached_output", make_case(N=8 + seed), seed).check()


@pytest.mark.parametrize("seed", range(3))
def test_skipped_work_is_caught_in_the_timed_calls(make_arm, make_case, seed):
    arm = make_arm("batch_and_skip", make_case(N=16 + seed), seed)
    arm.check()  # the calls before the timed ones are honest
    with pytest.raises(Failure, match="in a timed call"):
        for round_ in range(8):
            call = arm.prepare(round_)
            arm.inspect(round_, call())


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("sdpa_causal_one_query", {"L": 1}),
        ("first_64_keys", {"L": 64}),
    ],
)
def test_a_control_declines_where_it_would_be_right(make_arm, make_case, name, fields):
    with pytest.raises(Failure) as caught:
        make_arm(name, make_case(**fields)).check()
    assert caught.value.status is Status.UNSUPPORTED


def test_a_relative_error_is_measured_and_left_to_the_check(make_arm, make_case):
    arm = make_arm("relative_error", make_case(L=1024))
    arm.check()
    errors = desk_of(arm.sets).tally(arm.name).errors
    assert errors is not None and errors.rel_l2 > 3e-3


def control(call):
    return registered("selection_rows", "cheat", call, Role.CONTROL, caught_by="parity")


def test_reversed_keys_are_a_changed_input(make_case):
    """Reversing the keys does not change their sum."""

    def reverse(q, k, v, *, sm_scale):
        return heads_as_queries(q, k.copy_(k.flip(1)), v.copy_(v.flip(1)), sm_scale)

    case = make_case()
    with pytest.raises(Failure, match="changed its input k"):
        arm_of(control(reverse), case, sets_of(case), Random(0)).check()


class NeverPicks(Random):
    """A source that picks no call for a check."""

    def random(self):
        return 1.0


def test_a_change_in_an_unchecked_call_is_not_blamed_on_another(shipped, make_case):
    case = make_case()
    sets = sets_of(case)

    def mutate(q, k, v, *, sm_scale):
        return heads_as_queries(q, k.mul_(2), v, sm_scale)

    cheat = arm_of(control(mutate), case, sets, NeverPicks())
    cheat.inspect(2, cheat.prepare(2)())
    honest = arm_of(shipped["sdpa_gqa"], case, sets, Random(0))
    for _ in range(6):  # round 1 is always checked
        try:
            honest.inspect(1, honest.prepare(1)())
        except Failure as failure:
            pytest.fail(f"the honest implementation is accused: {failure.reason}")


def test_a_failure_in_a_timed_call_is_diagnosed_on_its_inputs(shipped, make_case):
    timing = rounds(40, warmup_s=0.001)
    calls = 0

    def truncate(q, k, v, *, sm_scale):
        nonlocal calls
        calls += 1
        keys = 64 if calls > UNTIMED_CALLS else k.shape[1]
        return heads_as_queries(q, k[:, :keys], v[:, :keys], sm_scale)

    for _ in range(3):
        calls = 0
        some = [control(truncate), shipped["sdpa_gqa"], shipped["bmm_softmax"]]
        observation, *_ = observations(make_case(timing=timing), some)
        assert observation.status is Status.WRONG
        assert "attends to the first 64 of 256 keys" in observation.diagnosis
