"""A leaderboard is of one regime, names libraries, and lists alternatives last."""

from dataclasses import replace

import pytest

from nsabench.model.plan import LibraryRelease
from nsabench.model.vocabulary import NO_SPECIALISED, Kind, Mode, Regime, Role, Status
from nsabench.output.site.leaderboard import leaderboards
from nsabench.verdicts.tables import read_records
from tests.runs import Made, make_run, with_comparison

CALLED = Made(
    ratio=lambda _: 4.0,
    queue_ratio=lambda _: 0.5,
    kind=Kind.GENERAL,
    dense_ratio=lambda _: 0.25,
    origin=LibraryRelease(package="fla-core", version="0.6.0", licence="MIT"),
)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return read_records(make_run(tmp_path_factory.mktemp("called") / "run", CALLED))


def in_graphs(record):
    """Return the record as if its calls were replays, which have no regime `queue`."""
    device = (c for c in record.comparisons if c.regime is Regime.DEVICE)
    comparisons = tuple(replace(c, regime=Regime.GRAPH) for c in device)
    return replace(record, mode=Mode.GRAPH, comparisons=comparisons)


def names(board):
    return [row[0] for row in board.table.rows]


def test_each_regime_has_a_board_of_its_own(records):
    """An alternative comes last, even if it is faster than others."""
    device, queue = leaderboards([records])
    assert device.table.title == "selection_rows by its kernels alone"
    assert queue.table.title == "selection_rows from Python"
    assert names(device) == ["mine", "sdpa_gqa", "dense"]
    assert names(queue) == ["sdpa_gqa", "mine", "dense"]
    [board] = leaderboards([[in_graphs(r) for r in records]])
    assert board.table.title == "selection_rows in a CUDA graph"


def test_an_entry_has_its_times_its_library_and_its_caution(records):
    device, queue = leaderboards([records])
    mine, sdpa, dense = device.table.rows
    assert sdpa[2] == "fla-core, 0.6.0, MIT"
    assert mine[3:] == ("1.00", "1.00 to 1.00", "16", "16 of 16", f"{NO_SPECIALISED} in 16 of 16")
    assert dense[1] == "alternative, selection_varlen" and float(dense[3]) < 0.3
    assert {row[-1] for row in queue.table.rows} == {"–"}, "half as fast is no great ratio"


def test_an_implementation_of_few_cases_leads_no_board(records):
    """Its mean covers other cases than the means it would be ranked with."""
    few = [
        with_comparison(replace(r, implementation="few"), median_ms=r.median_ms / 2)
        for r in records
        if r.role is Role.CANDIDATE and r.length == 64 and r.median_ms
    ]
    device, _ = leaderboards([[*records, *few]])
    assert names(device) == ["mine", "sdpa_gqa", "few", "dense"]


def test_of_several_runs_the_one_with_most_times_says(records):
    """A later run of one case must not hide a run with more times."""
    [one, *_] = {r.case_id for r in records}
    few = [r for r in records if r.case_id == one]
    for runs in ([few, records], [records, few]):
        assert [board.table.rows[0][-2] for board in leaderboards(runs)] == ["16 of 16"] * 2


def test_what_is_wrong_stands_apart_with_why(records):
    wrong = [
        replace(r, status=Status.WRONG, diagnosis="attends to one key", comparisons=())
        if r.role is Role.CANDIDATE and r.length == 64
        else r
        for r in records
    ]
    device, _ = leaderboards([wrong])
    assert "mine" not in names(device)
    assert device.wrong == [("mine", "wrong: attends to one key (4 of 16)")]


def test_software_that_is_no_pair_stands_last(records):
    paired = [replace(r, torch="2.11.0+cu130", triton="3.6.0") for r in records]
    other = [replace(r, torch="2.11.0+cu130", triton="3.1.0") for r in records]
    boards = leaderboards([other, paired])
    assert ["unpaired" in b.place.machine for b in boards] == [False, False, True, True]
