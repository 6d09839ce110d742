"""The caution for a great ratio over masks and gathers alone."""

import pytest

from nsabench.model.vocabulary import NO_SPECIALISED, Kind, Regime, Role
from nsabench.verdicts import threshold, thresholds_yaml
from nsabench.verdicts.tables import read_records
from tests.runs import Made, make_run


def cautions(folder, made):
    """Return the lengths of the candidates' records by the records' caution."""
    found = {}
    for record in read_records(make_run(folder, made)):
        if record.role is Role.CANDIDATE:
            found.setdefault(record.caution, set()).add(record.length)
        else:
            assert not record.caution
    return found


def rising(length):
    return {64: 1.5, 128: 2.9, 256: 3.2, 512: 9.0}[length]


ALL, GREAT = {64, 128, 256, 512}, {256, 512}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (Made(kind=Kind.GENERAL, ratio=rising), {"": {64, 128}, NO_SPECIALISED: GREAT}),
        (Made(kind=Kind.SPECIALISED, ratio=rising), {"": ALL}),
        (Made(kind=None, ratio=rising), {"": ALL}),
        # A second baseline has no recorded kind, so it may be specialised.
        (Made(kind=Kind.GENERAL, ratio=rising, flex_ms=lambda _: 5.0), {"": ALL}),
    ],
)
def test_a_great_ratio_over_general_baselines_alone_needs_a_caution(tmp_path, made, expected):
    assert cautions(tmp_path, made) == expected


@pytest.mark.parametrize(("times", "hidden"), [(1.9, True), (2.1, False)])
def test_a_specialised_baseline_far_behind_does_not_count(tmp_path, times, hidden):
    alone = read_records(make_run(tmp_path / "alone", Made(kind=Kind.GENERAL, ratio=rising)))
    best = {r.length: r.median_ms or 0.0 for r in alone if r.role is Role.BASELINE}
    made = Made(
        kind=Kind.GENERAL,
        ratio=rising,
        flex_kind=Kind.SPECIALISED,
        flex_ms=lambda length: times * best[length],
    )
    found = cautions(tmp_path / "beside", made)
    assert found.get(NO_SPECIALISED, set()) == (set() if hidden else {256, 512})


def test_the_caution_is_of_the_regime_whose_ratio_is_great(tmp_path):
    made = Made(kind=Kind.GENERAL, ratio=lambda _: 1.5, queue_ratio=lambda _: 4.0)
    records = read_records(make_run(tmp_path, made))
    mine = [r for r in records if r.role is Role.CANDIDATE]
    assert {r.caution_in(Regime.DEVICE) for r in mine} == {""}
    assert {r.caution_in(Regime.QUEUE) for r in mine} == {NO_SPECIALISED}
    assert {r.kind for r in records if r.role is Role.BASELINE} == {Kind.GENERAL}
    assert {r.kind for r in records if r.role is not Role.BASELINE} == {None}


def test_a_threshold_says_in_how_many_of_its_cases(tmp_path):
    made = Made(kind=Kind.GENERAL, ratio=rising, queue_ratio=lambda _: 1.5)
    device, queue = threshold.decide_run(read_records(make_run(tmp_path, made)))
    assert device.min_length == queue.min_length == 64
    assert device.sentence.endswith("(no specialised baseline in 8 of 16)")
    assert device.regime is Regime.DEVICE and not queue.caution
    assert "caution: no specialised baseline in 8 of 16" in thresholds_yaml.as_yaml([device])
