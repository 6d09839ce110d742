"""From which length on an op pays, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch, Change, DType, Regime, Role
from nsabench.output import ci
from nsabench.output.compare import BAND, compare, document, read
from nsabench.output.compare.comparison import BAND_IN_QUEUE, Comparison
from nsabench.output.compare.payments import ComparedPayment, compared
from nsabench.output.terminal import console
from tests.output.compare.conftest import failures
from tests.runs import Made, make_run
from tests.verdicts.test_break_even import ladder, queued


class Told:
    """A run as far as what pays goes by it."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = {r.key: r for r in records}


def held(*runs: Sequence[Record]) -> list[ComparedPayment]:
    return list(compared([Told(run) for run in runs], BAND, BAND_IN_QUEUE))  # type: ignore[misc]


BEFORE: dict[int, float | None] = {4096: 0.8, 8192: 1.3, 16384: 2.0}


@pytest.mark.parametrize(
    ("after", "change"),
    [
        (BEFORE, None),
        ({4096: 0.8, 8192: 0.9, 16384: 2.0}, Change.BROKE),
        ({4096: 0.8, 8192: 0.9, 16384: 0.9}, Change.BROKE),
        ({4096: 1.1, 8192: 1.3, 16384: 2.0}, Change.MENDED),
        ({4096: 0.8, 8192: 1.3, 16384: None}, Change.OTHER),
        ({4096: 0.8, 8192: None, 16384: 2.0}, Change.OTHER),
    ],
)
def test_what_pays_later_is_worse(after: dict[int, float | None], change: Change | None) -> None:
    [paid] = held(ladder(BEFORE), ladder(after))
    assert paid.name == "nsa_attention 64/4 forward (device)"
    assert [shift.change for shift in paid.shifts] == [change]
    assert paid.said(0) == "pays from T = 8192 on"


def test_a_ratio_near_one_that_moves_by_less_than_runs_differ_is_no_regression() -> None:
    [paid] = held(ladder({8192: 1.02, 16384: 2.0}), ladder({8192: 1.0, 16384: 2.0}))
    assert (paid.answers[0].length, paid.answers[1].length) == (8192, 16384)  # type: ignore[union-attr]
    assert (paid.shifts[0].change, paid.shifts[0].cases) == (Change.OTHER, ())


def test_the_queue_is_held_to_a_wider_band_and_by_itself() -> None:
    def run(ratio: float) -> list[Record]:
        return queued(ladder(BEFORE), {4096: 0.5, 8192: ratio, 16384: 1.5})

    seen = {
        after: {p.regime: p.shifts[0].change for p in held(run(1.05), run(after))}
        for after in (0.97, 0.8)
    }
    assert seen[0.97] == {Regime.QUEUE: Change.OTHER, Regime.DEVICE: None}
    assert seen[0.8] == {Regime.QUEUE: Change.BROKE, Regime.DEVICE: None}


def test_a_run_whose_control_got_away_is_no_regression_of_what_pays() -> None:
    after = [
        replace(r, caught=Catch.MISSED) if r.role is Role.CONTROL else r
        for r in ladder({8192: 0.5, 16384: 0.5})
    ]
    [paid] = held(ladder({8192: 1.5, 16384: 1.5}), after)
    assert paid.shifts[0].change is Change.OTHER and "not caught" in paid.shifts[0].why


def test_cases_that_only_one_run_has_do_not_count() -> None:
    more = ladder({4096: 1.5, 8192: 1.5}) + ladder({4096: 0.5}, dtype=DType.FLOAT16)
    [paid] = held(ladder({4096: 1.5, 8192: 1.5}), more)
    assert paid.shifts[0].change is None


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    """Two runs that are alike, of an op that pays later in the second."""
    made = (Made(ratio=lambda _: 1.5), Made(ratio=lambda _: 1.5, run_id="20260201T000000Z-abc124"))
    folders = [make_run(tmp_path / f"run{i}", one) for i, one in enumerate(made)]
    plain = compare(read(folders))
    paid = held(ladder(BEFORE), ladder({4096: 0.8, 8192: 0.9, 16384: 2.0}))
    return replace(plain, payments=tuple(paid))


def test_it_is_a_regression_and_every_output_says_so(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert failures(comparison, slower=False) == []
    [line] = failures(comparison, slower=True)
    assert "nsa_attention 64/4 forward (device) in run1: pays from T = 16384 on" in line
    assert "before: pays from T = 8192 on" in line
    [data] = document.as_data(comparison)["pays"]
    assert [one["from"] for one in data["runs"]] == [8192, 16384]
    assert data["later"][0]["change"] == "broke"
    text = document.to_markdown(comparison)
    assert "## From which length on it pays" in text and "pays from T = 16384 on" in text
    shown = console()
    with shown.capture() as capture:
        shown.print(document.render(comparison))
    assert "pays from T = 16384 on" in capture.get()
    assert "pays from T = 16384 on" in document.page(comparison)
    failed = [t for t in ci.of_comparison(comparison, slower=True) if t.failed]
    assert [t.kind for t in failed] == ["pays less"]
    none = replace(comparison, payments=())
    assert "it pays" not in document.to_markdown(none) and document.as_data(none)["pays"] == []
