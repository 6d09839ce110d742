"""A board is of one regime, names libraries, and keeps alternatives apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from nsabench.evidence.manifest.statement import Trust
from nsabench.model.plan import Origin
from nsabench.model.record import Record
from nsabench.model.vocabulary import NO_SPECIALISED, Kind, Mode, Regime, Role, Status
from nsabench.output.site.build import SiteRun, index
from nsabench.output.site.leaderboard import leaderboards
from nsabench.verdicts.tables import read_records
from tests.runs import Made, make_run, with_comparison

CALLED = Made(
    ratio=lambda _: 4.0,
    queue_ratio=lambda _: 0.5,
    kind=Kind.GENERAL,
    dense_ratio=lambda _: 0.25,
    origin=Origin(package="fla-core", version="0.6.0", licence="MIT"),
)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Record]:
    return read_records(make_run(tmp_path_factory.mktemp("called") / "run", CALLED))


def in_graphs(record: Record) -> Record:
    """The record as if its calls had been replays, which have no queue."""
    return replace(
        record,
        mode=Mode.GRAPH,
        comparisons=tuple(
            replace(c, regime=Regime.GRAPH) for c in record.comparisons if c.regime is Regime.DEVICE
        ),
    )


def page(records: Sequence[Record], of: str = "20260101T000000Z-abc123") -> str:
    return index([SiteRun(of, "2026-01-01 00:00", Trust.UNSIGNED, "", records, [])])


def test_each_regime_has_a_board_of_its_own(records: Sequence[Record]) -> None:
    device, queue = leaderboards([("run", records)])
    assert device.title == "selection_rows on the device"
    assert queue.title == "selection_rows called from Python in a queue"
    assert [e.implementation for e in device.entries] == ["mine", "sdpa_gqa"]
    assert [e.implementation for e in queue.entries] == ["sdpa_gqa", "mine"]
    assert queue.entries[1].mean == pytest.approx(2, rel=0.05)
    graphs = [in_graphs(r) for r in records]
    [board] = leaderboards([("run", graphs)])
    assert board.title == "selection_rows in graphs" and board.regime is Regime.GRAPH
    for text in ("on the device", "called from Python in a queue", "time, device", "time, queue"):
        assert text in page(records)


def test_an_alternative_is_no_rival(records: Sequence[Record]) -> None:
    """It is four times as fast as the fastest rival, and takes no place from it."""
    device, queue = leaderboards([("run", records)])
    for board in (device, queue):
        assert [e.implementation for e in board.alternatives] == ["dense"]
        assert board.entries[0].mean == 1 and board.entries[0].fastest == 16
    [dense] = device.alternatives
    assert dense.mean == pytest.approx(0.25, rel=0.05) and dense.computes == "selection_varlen"
    assert "alternative, selection_varlen" in page(records)


def test_an_entry_has_its_library_and_its_caution(records: Sequence[Record]) -> None:
    device, queue = leaderboards([("run", records)])
    mine, sdpa = device.entries
    assert sdpa.library == "fla-core, 0.6.0, MIT"
    assert mine.caution == f"{NO_SPECIALISED} in 16 of 16"
    assert not any(e.caution for e in queue.entries), "half as fast is no great ratio"
    assert "fla-core, 0.6.0, MIT" in page(records)


def test_who_ran_in_few_cases_leads_no_board(records: Sequence[Record]) -> None:
    """Its mean is of other cases than that of the others."""
    few = [
        with_comparison(replace(r, implementation="few"), median_ms=r.median_ms / 2)
        for r in records
        if r.role is Role.CANDIDATE and r.length == 64 and r.median_ms
    ]
    device, _ = leaderboards([("run", [*records, *few])])
    assert [e.implementation for e in device.entries] == ["mine", "sdpa_gqa", "few"]
    assert device.entries[-1].mean == 1


def test_of_several_runs_the_latest_that_is_half_as_large_says(records: Sequence[Record]) -> None:
    """One case that was measured later, with no library installed, hid the table of libraries."""
    [one, *_] = {r.case_id for r in records}
    few = [r for r in records if r.case_id == one]
    assert {b.run_id for b in leaderboards([("later", few), ("earlier", records)])} == {"earlier"}
    assert {b.run_id for b in leaderboards([("later", records), ("earlier", few)])} == {"later"}
    assert {b.run_id for b in leaderboards([("later", few), ("earlier", few)])} == {"later"}


def test_a_larger_run_without_the_libraries_says_nothing_of_them(records: Sequence[Record]) -> None:
    """A later run of 60 cases in which no library was installed hid five cases with all of them."""
    [one, *_] = {r.case_id for r in records}
    few = [r for r in records if r.case_id == one]
    alone = [replace(r, package="") for r in records]
    failed = [replace(r, status=Status.UNSUPPORTED) if r.package else r for r in records]
    for without in (alone, failed):
        boards = leaderboards([("without", without), ("beside them", few)])
        assert {b.run_id for b in boards} == {"beside them"}
    invented = [replace(r, package=f"{r.implementation} made it up") for r in few]
    own = [replace(r, package="fla-core", role=Role.CANDIDATE) for r in few]
    for little in (invented, own):
        boards = leaderboards([("little", little), ("without", alone)])
        assert {b.run_id for b in boards} == {"without"}, "no library that nsabench knows is there"
    untimed = [with_comparison(r, Regime.QUEUE, median_ms=None) if r.package else r for r in few]
    boards = leaderboards([("without", alone), ("little", untimed)])
    assert [b.run_id for b in boards] == ["little", "without"], "by regime"


def test_what_is_wrong_stands_last_with_why(records: Sequence[Record]) -> None:
    wrong = [
        replace(r, status=Status.WRONG, diagnosis="attends to one key", comparisons=())
        if r.role is Role.CANDIDATE and r.length == 64
        else r
        for r in records
    ]
    device, _ = leaderboards([("run", wrong)])
    *right, last = device.entries
    assert (last.implementation, last.right, last.cases) == ("mine", 12, 16)
    assert last.wrong == "wrong: attends to one key (4 of 16)"
    assert right and not any(entry.wrong for entry in right)


def test_software_that_is_no_pair_stands_last(records: Sequence[Record]) -> None:
    paired = [replace(r, torch="2.11.0+cu130", triton="3.6.0") for r in records]
    other = [replace(r, torch="2.11.0+cu130", triton="3.1.0") for r in records]
    boards = leaderboards([("other", other), ("paired", paired)])
    assert [b.run_id for b in boards] == ["paired", "paired", "other", "other"]
