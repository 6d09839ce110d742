"""What stands beside a verdict: a great ratio over masks and gathers alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsabench.assessment.caution import NO_SPECIALISED
from nsabench.assessment.tables import read_records
from nsabench.model.record import Record
from nsabench.model.vocabulary import Kind, Role
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
