"""What stands beside a verdict: a great ratio over masks and gathers alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsabench.model.record import Record
from nsabench.model.vocabulary import NO_SPECIALISED, Kind, Regime, Role
from nsabench.verdicts import threshold, thresholds_yaml
from nsabench.verdicts.tables import read_records
from tests.runs import Made, make_run


def cautions(folder: Path, made: Made) -> dict[str, set[int]]:
    """The lengths of the candidates' records, by what stands beside their verdicts."""
    found: dict[str, set[int]] = {}
    for record in read_records(make_run(folder, made)):
        if record.role is Role.CANDIDATE:
            found.setdefault(record.caution, set()).add(record.length)
        else:
            assert not record.caution
    return found


def rising(length: int) -> float:
    return {64: 1.5, 128: 2.9, 256: 3.2, 512: 9.0}[length]


def test_a_ratio_over_three_over_general_baselines_alone(tmp_path: Path) -> None:
    found = cautions(tmp_path, Made(kind=Kind.GENERAL, ratio=rising))
    assert found == {"": {64, 128}, NO_SPECIALISED: {256, 512}}


@pytest.mark.parametrize("kind", [Kind.SPECIALISED, None])
def test_one_that_was_made_for_the_op_and_one_that_does_not_say(
    tmp_path: Path, kind: Kind | None
) -> None:
    assert cautions(tmp_path, Made(kind=kind, ratio=rising)) == {"": {64, 128, 256, 512}}


def test_a_specialised_one_that_was_timed_beside_it_is_enough(tmp_path: Path) -> None:
    # The other baseline is of no kind that was recorded, and so not known to be general.
    made = Made(kind=Kind.GENERAL, ratio=rising, flex_ms=lambda length: 5.0)
    assert cautions(tmp_path, made) == {"": {64, 128, 256, 512}}


@pytest.mark.parametrize(("times", "hidden"), [(1.9, True), (2.1, False)])
def test_a_specialised_one_that_is_far_behind_hides_nothing(
    tmp_path: Path, times: float, hidden: bool
) -> None:
    """A plain kernel that was made for the op shows no more than a mask what a good one takes."""
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


def test_the_queue_alone_may_ask_for_it(tmp_path: Path) -> None:
    made = Made(kind=Kind.GENERAL, ratio=lambda _: 1.5, queue_ratio=lambda _: 4.0)
    assert cautions(tmp_path, made) == {NO_SPECIALISED: {64, 128, 256, 512}}


def test_a_record_says_of_what_kind_a_baseline_is(tmp_path: Path) -> None:
    def kinds(record: Record) -> tuple[Role, Kind | None]:
        return record.role, record.kind

    records = read_records(make_run(tmp_path, Made(kind=Kind.GENERAL)))
    assert {kinds(r) for r in records} == {
        (Role.CANDIDATE, None),
        (Role.BASELINE, Kind.GENERAL),
        (Role.CONTROL, None),
    }


def test_it_stands_beside_the_ratio_that_is_great_and_no_other(tmp_path: Path) -> None:
    made = Made(kind=Kind.GENERAL, ratio=lambda _: 1.5, queue_ratio=lambda _: 4.0)
    records = [r for r in read_records(make_run(tmp_path, made)) if r.role is Role.CANDIDATE]
    assert {r.caution_in(Regime.DEVICE) for r in records} == {""}
    assert {r.caution_in(Regime.QUEUE) for r in records} == {NO_SPECIALISED}


def test_a_threshold_says_in_how_many_of_its_cases(tmp_path: Path) -> None:
    made = Made(kind=Kind.GENERAL, ratio=rising, queue_ratio=lambda _: 1.5)
    device, queue = threshold.decide_run(read_records(make_run(tmp_path, made)))
    assert device.min_length == queue.min_length == 64
    assert device.sentence.endswith("(no specialised baseline in 8 of 16)")
    assert device.regime is Regime.DEVICE and not queue.caution
    assert "caution: no specialised baseline in 8 of 16" in thresholds_yaml.as_yaml([device])
