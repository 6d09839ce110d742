"""Which hosts are not as the others, by the one case that all of them measured."""

from __future__ import annotations

from nsabench.assessment.canary import Canary, outlying


def of(*medians: float) -> dict[str, str]:
    return outlying({str(i): Canary({"sdpa": ms}) for i, ms in enumerate(medians)})


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
    assert set(outlying({"a": same, "b": same, "c": odd})) == {"c"}


def test_a_host_that_was_disturbed_or_did_not_time_it_decides_nothing() -> None:
    fine = Canary({"sdpa": 1.0})
    found = outlying({"a": fine, "b": Canary({"sdpa": 1.0}, "throttled"), "c": Canary({})})
    assert set(found) == {"b", "c"}
    assert "throttled" in found["b"] and "did not time" in found["c"]
