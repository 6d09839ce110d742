"""Which hosts are not as the others, by the one case that all of them measured."""

from __future__ import annotations

import pytest

from nsabench.model.measurement import Observation, Samples
from nsabench.model.vocabulary import Purpose, Status
from nsabench.verdicts.merged import Canary, find_outliers, read_canary
from tests.runs import Made, add_attempt, log_of, make_plan


def of(*medians: float) -> dict[str, str]:
    return find_outliers({str(i): Canary({"sdpa": ms}) for i, ms in enumerate(medians)})


def test_hosts_within_three_per_cent_are_alike() -> None:
    assert of(1.0, 1.015, 1.03) == {}
    assert of(1.0) == {}


def test_the_one_that_is_apart_is_named_with_the_numbers() -> None:
    assert of(1.0, 1.01, 1.05) == {
        "2": "sdpa took 1.05 ms for the case that all shards measure, and 1 to 1.01 ms in the "
        "others: over 3% apart"
    }
    assert set(of(1.0, 0.9, 1.0, 1.01)) == {"1"}


def test_where_no_more_than_half_agree_nobody_knows_which_it_is() -> None:
    assert set(of(1.0, 1.05)) == {"0", "1"}
    assert set(of(1.0, 1.0, 1.2, 1.2)) == {"0", "1", "2", "3"}


def test_the_closest_are_taken_where_several_sets_are_as_large() -> None:
    assert set(of(1.0, 1.03, 1.05)) == {"0"}


def test_every_implementation_counts() -> None:
    same = Canary({"sdpa": 1.0, "mine": 1.0})
    odd = Canary({"sdpa": 1.0, "mine": 1.1})
    assert set(find_outliers({"a": same, "b": same, "c": odd})) == {"c"}


def test_a_host_that_was_disturbed_or_did_not_time_it_decides_nothing() -> None:
    fine = Canary({"sdpa": 1.0})
    found = find_outliers({"a": fine, "b": Canary({"sdpa": 1.0}, "throttled"), "c": Canary({})})
    assert set(found) == {"b", "c"}
    assert "throttled" in found["b"] and "did not time" in found["c"]


HONEST = Canary({"sdpa": 1.0, "mine": 0.5}, failed={"other": "crashed: SIGSEGV"})


@pytest.mark.parametrize(
    ("liar", "outliers"),
    [
        (Canary({"sdpa": 1.0, "mine": 0.5, "other": 0.1}), set()),
        (Canary({"sdpa": 1.2, "mine": 0.5, "other": 0.1}), {"liar"}),
        (Canary({"other": 0.1}), {"liar"}),
        (Canary({"sdpa": 1.0, "other": 0.1}, failed={"mine": "crashed"}), {"liar"}),
        (Canary({"sdpa": 1.0}), set()),  # it declined `mine`
    ],
    ids=["one more", "apart", "nothing else", "one failed", "one declined"],
)
def test_one_shard_says_nothing_against_five(liar: Canary, outliers: set[str]) -> None:
    shards = {str(i): HONEST for i in range(5)} | {"liar": liar}
    assert set(find_outliers(shards)) == outliers


def test_what_was_timed_while_disturbed_is_held_against_nobody() -> None:
    disturbed = Canary({"sdpa": 1.0, "mine": 0.5, "other": 0.1}, "throttled")
    shards = {"honest": HONEST, "another": HONEST}
    shards |= {f"disturbed {i}": disturbed for i in range(3)}
    assert set(find_outliers(shards)) == {name for name in shards if "disturbed" in name}


@pytest.mark.parametrize(
    ("status", "failed"),
    [(Status.SKIPPED, False), (Status.UNSUPPORTED, False), (Status.CRASHED, True)],
)
def test_what_declines_the_case_has_not_failed(status: Status, failed: bool) -> None:
    plan = make_plan(Made(shard="1/2"))
    assert plan.canary is not None
    name, *others = plan.canary.implementations
    samples = Samples(round=[0], time_ms=[1.0])
    fine = [Observation(implementation=o, status=Status.OK, samples=samples) for o in others]
    declined = Observation(implementation=name, status=status, reason="said so")

    def seen(outcomes: list[Observation]) -> Canary:
        log = log_of(plan)
        add_attempt(log, plan, Purpose.CANARY, plan.canary.id, outcomes)  # type: ignore[union-attr]
        return read_canary(plan, log)

    found = seen([declined, *fine])
    assert found.medians == dict.fromkeys(others, 1.0)
    assert found.failed == ({name: f"{status}: said so"} if failed else {})
    assert seen([declined]).failed == {name: f"{status}: said so"}
