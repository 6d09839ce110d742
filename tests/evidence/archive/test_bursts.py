"""Bursts in an archive: an interval of the queue can be made of them again, years later."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nsabench.assessment.statistics import paired, ratio_of_medians
from nsabench.assessment.tables import read_records
from nsabench.evidence.archive import Archive
from nsabench.evidence.archive.query import query
from nsabench.evidence.manifest import seal, verify
from nsabench.model.vocabulary import Role
from nsabench.signing import Signer
from tests.runs import SIGNER, Made, make_run

QUEUE = Made(ratio=lambda _: 1.5, queue_ratio=lambda length: 0.8 if length < 256 else 1.3)
ASKED = """SELECT round, time_ms, calls FROM bursts
           WHERE case_id = '{}' AND implementation = '{}' ORDER BY round"""


@pytest.fixture
def signer() -> Signer:
    return SIGNER


def test_intervals_of_the_queue_are_made_again_of_what_is_archived(
    tmp_path: Path, signer: Signer
) -> None:
    run = make_run(tmp_path / "run", QUEUE)
    seal(run, signer)
    archive = Archive(str(tmp_path / "archive"), create=True)
    archive.add(run)
    judged = [r for r in read_records(run) if r.role is Role.CANDIDATE]
    assert len({r.queue_verdict for r in judged}) == 2
    for record in judged:
        times = []
        for name in (record.queue_best_baseline, record.implementation):
            rows = query(archive, ASKED.format(record.case_id, name)).to_pylist()
            assert all(row["calls"] >= 1 for row in rows)
            times += [[row[column] for row in rows] for column in ("round", "time_ms")]
        again = ratio_of_medians(*paired(*times))
        made = (record.queue_speedup, record.queue_speedup_lo, record.queue_speedup_hi)
        assert (again.value, again.lo, again.hi) == pytest.approx(made)


def test_bursts_that_are_not_those_of_the_log(tmp_path: Path, signer: Signer) -> None:
    run = make_run(tmp_path / "run", QUEUE)
    seal(run, signer)
    rows = pq.read_metadata(run / "bursts.parquet").num_rows
    assert verify(run).details["bursts"] == f"{rows} rows"
    path, table = run / "bursts.parquet", pq.read_table(run / "bursts.parquet")
    pq.write_table(table.slice(1), path)
    assert (verify(run).broken or "").startswith("hashes: bursts.parquet was changed")
    seal(run, signer)
    assert verify(run).broken == f"bursts: bursts.parquet: rows is {rows - 1} and should be {rows}"
    path.unlink()
    assert verify(run).broken == "files: bursts.parquet is missing"
