"""A board is of one regime, names libraries, keeps alternatives apart, and has claims beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from nsabench import ops
from nsabench.assessment.tables import read_records
from nsabench.evidence.manifest.statement import Trust
from nsabench.model.origin import Origin
from nsabench.model.record import Record
from nsabench.model.vocabulary import NO_SPECIALISED, Direction, Kind, Mode, Regime, Role, Status
from nsabench.output.site.leaderboard import IN_SUM, NOT_HERE, claimed, leaderboards
from nsabench.output.site.runs import SiteRun
from nsabench.output.site.write import index
from nsabench.packages import claims
from nsabench.packages.catalogue import find
from tests.runs import Made, make_run

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


def page(records: Sequence[Record], of: str = "20260101T000000Z-abc123") -> str:
    return index([SiteRun(of, "2026-01-01 00:00", Trust.UNSIGNED, "", records, [])], trends=False)


def test_each_regime_has_a_board_of_its_own(records: Sequence[Record]) -> None:
    device, queue = leaderboards([("run", records)])
    assert device.title == "selection_rows on the device"
    assert queue.title == "selection_rows called from Python in a queue"
    assert [e.implementation for e in device.entries] == ["mine", "sdpa_gqa"]
    assert [e.implementation for e in queue.entries] == ["sdpa_gqa", "mine"]
    assert queue.entries[1].mean == pytest.approx(2, rel=0.05)
    graphs = [replace(r, mode=Mode.GRAPH, queued_ms=None) for r in records]
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


def of_blocks(record: Record, package: str, t: int, **changed: object) -> Record:
    shape = {"B": 1, "T": t, "HQ": 64, "H": 4, "D": 128, "Dv": 128, "S": 16, "block_size": 64}
    return replace(
        record,
        op="selection_blocks",
        shape=shape,
        length=t,
        package=package,
        implementation="nsa_triton",
        **changed,  # type: ignore[arg-type]
    )


def test_a_claim_stands_beside_what_was_measured_at_its_sizes(records: Sequence[Record]) -> None:
    own = next(r for r in records if r.role is Role.BASELINE)
    name = "native-sparse-attention-triton"
    rows = [
        of_blocks(own, name, 65536, median_ms=19.8, case_id="a"),
        of_blocks(own, name, 8192, status=Status.WRONG, median_ms=None, case_id="b"),
        of_blocks(own, "fla-core", 65536, median_ms=23.1, case_id="c"),
    ]
    found = {
        (claim.package, claim.shape.get("T")): measured
        for claim, measured in claimed("selection_blocks", "forward", rows)
    }
    [measured] = found[name, 65536]
    assert measured.startswith("nsa_triton takes 19.8 ms on the device on ")
    [measured] = found[name, 8192]
    assert measured.startswith("nsa_triton is wrong on ")
    assert found["fla-core", 8192] == (NOT_HERE,)
    for changed in ({"block_size": 32}, {"B": 2}):  # other sizes
        other = replace(rows[0], shape={**rows[0].shape, **changed})
        elsewhere = claimed("selection_blocks", "forward", [other])
        assert {measured for _, measured in elsewhere} == {(NOT_HERE,)}
    text = page(rows)
    assert "24.51 ms, FlashAttention 187.2 ms, at T=65536 B=1 HQ=64 H=4 D=128 S=16 block" in text
    assert 'href="https://github.com/XunhaoLai/native-sparse-attention-triton#benchmarks"' in text


def test_a_claim_in_sum_is_beside_a_board_that_has_its_library(records: Sequence[Record]) -> None:
    own = next(r for r in records if r.role is Role.BASELINE)

    def said(package: str, **changed: object) -> tuple[str, ...]:
        rows = [of_blocks(own, package, 65536, **changed)]
        found = claimed("selection_blocks", "forward", rows)
        [measured] = [measured for claim, measured in found if not claim.shape]
        return measured

    fsa = "Flash-Sparse-Attention"
    assert said(fsa) == (IN_SUM,)
    assert said("fla-core") == (NOT_HERE,)
    assert said(fsa, status=Status.WRONG, median_ms=None) == (NOT_HERE,)


@pytest.mark.parametrize("claim", claims.CLAIMS)
def test_a_claim_is_of_a_known_library_op_and_sizes(claim: claims.Claim) -> None:
    assert find(claim.package).name == claim.package
    op = ops.get(claim.op)
    assert Direction(claim.direction) in op.directions
    assert set(claim.shape) <= set(op.shape_model.model_fields)
    assert claim.site.startswith("https://") and claim.made.year >= 2025
    assert not {"only", "just", "merely", "!"} & set(claim.said.split()), "in neutral words"


def test_who_ran_in_few_cases_leads_no_board(records: Sequence[Record]) -> None:
    """Its mean is of other cases than that of the others."""
    few = [
        replace(r, implementation="few", median_ms=r.median_ms / 2)
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
    untimed = [replace(r, queued_ms=None) if r.package else r for r in few]
    boards = leaderboards([("without", alone), ("little", untimed)])
    assert [b.run_id for b in boards] == ["little", "without"], "by regime"


def test_what_is_wrong_stands_last_with_why(records: Sequence[Record]) -> None:
    wrong = [
        replace(r, status=Status.WRONG, diagnosis="attends to one key", median_ms=None)
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
