"""Which hosts' times differ from other hosts' times in the case that all hosts measure."""

import pytest

from nsabench.model.measurement import Observation, Samples
from nsabench.model.vocabulary import Purpose, Status
from nsabench.verdicts.results import Canary, find_outliers, read_canary
from tests.runs import Made, add_attempt, log_of, make_plan


@pytest.mark.parametrize(
    ("medians", "outliers"),
    [
        ([1.0, 1.015, 1.03], set()),
        ([1.0], set()),
        ([1.0, 1.01, 1.05], {"2"}),
        ([1.0, 0.9, 1.0, 1.01], {"1"}),
        # If no more than half agree, the outlier is unknown.
        ([1.0, 1.05], {"0", "1"}),
        ([1.0, 1.0, 1.2, 1.2], {"0", "1", "2", "3"}),
        ([1.0, 1.03, 1.05], {"0"}),  # of two equally large sets, the closer one counts
    ],
)
def test_hosts_within_three_per_cent_are_alike(medians, outliers):
    why = find_outliers({str(i): Canary({"sdpa": ms}) for i, ms in enumerate(medians)})
    assert set(why) == outliers
    for name, sentence in why.items():
        assert f"sdpa took {medians[int(name)]:g} ms" in sentence


FINE = Canary({"sdpa": 1.0, "mine": 1.0})


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (Canary({"sdpa": 1.0, "mine": 1.1}), "mine"),
        (Canary({"sdpa": 1.0, "mine": 1.0}, "throttled"), "throttled"),
        (Canary({}), "did not time"),
    ],
)
def test_a_host_that_is_not_like_the_others_decides_nothing(odd, why):
    outliers = find_outliers({"a": FINE, "b": FINE, "c": odd})
    assert set(outliers) == {"c"} and why in outliers["c"]


HONEST = Canary({"sdpa": 1.0, "mine": 0.5}, failed={"other": "crashed: SIGSEGV"})


@pytest.mark.parametrize(
    ("liar", "outliers"),
    [
        (Canary({"sdpa": 1.0, "mine": 0.5, "other": 0.1}), set()),
        (Canary({"sdpa": 1.2, "mine": 0.5, "other": 0.1}), {"liar"}),
        (Canary({"other": 0.1}), {"liar"}),
        (Canary({"sdpa": 1.0, "other": 0.1}, failed={"mine": "crashed"}), {"liar"}),
        (Canary({"sdpa": 1.0}), set()),  # the shard declined `mine`
    ],
    ids=["one more", "apart", "nothing else", "one failed", "one declined"],
)
def test_a_shard_alone_cannot_speak_against_five(liar, outliers):
    shards = {str(i): HONEST for i in range(5)} | {"liar": liar}
    assert set(find_outliers(shards)) == outliers


def test_disturbed_times_speak_against_no_other_host():
    disturbed = Canary({"sdpa": 1.0, "mine": 0.5, "other": 0.1}, "throttled")
    shards = {"honest": HONEST, "another": HONEST}
    shards |= {f"disturbed {i}": disturbed for i in range(3)}
    assert set(find_outliers(shards)) == {name for name in shards if "disturbed" in name}


@pytest.mark.parametrize(
    ("status", "failed"),
    [(Status.SKIPPED, False), (Status.UNSUPPORTED, False), (Status.CRASHED, True)],
)
def test_an_implementation_that_declines_the_case_has_not_failed(status, failed):
    plan = make_plan(Made(shard="1/2"))
    assert plan.canary is not None
    name, *others = plan.canary.implementations
    samples = Samples(round=[0], time_ms=[1.0])
    fine = [Observation(implementation=o, status=Status.OK, samples=samples) for o in others]
    declined = Observation(implementation=name, status=status, reason="said so")

    def seen(outcomes):
        log = log_of(plan)
        add_attempt(log, plan, Purpose.CANARY, plan.canary.id, outcomes)
        return read_canary(plan, log)

    found = seen([declined, *fine])
    assert found.medians == dict.fromkeys(others, 1.0)
    assert found.failed == ({name: f"{status}: said so"} if failed else {})
    assert seen([declined]).failed == {name: f"{status}: said so"}
