"""The runs that tests share are what the fixtures promise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nsabench.model.vocabulary import Status
from nsabench.verdicts.tables import read_records
from tests.commands import invoke
from tests.shared_runs import HOSTILE_TEXT, make_once


def test_every_shared_run_verifies(
    finished_run: Path, failed_run: Path, hostile_run: Path, sharded_runs: list[Path]
) -> None:
    for run in (finished_run, failed_run, hostile_run, *sharded_runs):
        done = invoke("verify", run)
        assert done.code == 0, done


def test_three_shards_hold_six_cases(sharded_runs: list[Path]) -> None:
    shards = [{record.case_id for record in read_records(run)} for run in sharded_runs]
    assert [len(shard) for shard in shards] == [2, 2, 2]
    assert len(set.union(*shards)) == 6


def test_failed_and_hostile_kernels_failed(failed_run: Path, hostile_run: Path) -> None:
    failed = {r.implementation: r.status for r in read_records(failed_run)}
    names = ("right", "wrong", "raises")
    assert [failed[name] for name in names] == [Status.OK, Status.WRONG, Status.CRASHED]
    hostile = {r.implementation: r for r in read_records(hostile_run)}
    assert {hostile[name].status for name in ("dies", "shouts")} == {Status.CRASHED}
    [log] = (hostile_run / "logs").iterdir()
    assert HOSTILE_TEXT in log.read_text()


def test_a_test_that_changes_a_shared_folder_fails(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    def made() -> Iterator[Path]:
        return make_once(tmp_path_factory, "changed", lambda path: path.joinpath("a").touch())

    shared, again = made(), made()
    folder = next(shared)
    assert next(again) == folder, "it was made twice"
    (folder / "a").write_text("changed")
    with pytest.raises(AssertionError, match="use a copy"):
        next(shared)
