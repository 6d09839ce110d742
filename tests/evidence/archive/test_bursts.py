"""Bursts in an archive: an interval of the queue can be made of them again, years later."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nsabench.evidence.archive import Archive
from nsabench.evidence.archive.query import query
from nsabench.evidence.manifest import seal, verify
from nsabench.model.vocabulary import Regime, Role
from nsabench.verdicts.statistics import ratio_of_rounds
from nsabench.verdicts.tables import read_records
from tests.runs import SIGNER, Made, make_run

QUEUE = Made(ratio=lambda _: 1.5, queue_ratio=lambda length: 0.8 if length < 256 else 1.3)
ASKED = """SELECT round, time_ms, calls FROM samples
           WHERE regime = 'queue' AND case_id = '{}' AND implementation = '{}' ORDER BY round"""


@pytest.fixture
def signer():
    return SIGNER


def test_intervals_of_the_queue_are_made_again_of_what_is_archived(tmp_path, signer):
    run = make_run(tmp_path / "run", QUEUE)
    seal(run, signer)
    archive = Archive(str(tmp_path / "archive"), create=True)
    archive.add(run)
    judged = [r for r in read_records(run) if r.role is Role.CANDIDATE]
    compared = [c for r in judged if (c := r.compared(Regime.QUEUE)) is not None]
    assert len(compared) == len(judged) and len({c.verdict for c in compared}) == 2
    for made in compared:
        times = []
        for name in (made.against, made.implementation):
            rows = query(archive, ASKED.format(made.case_id, name)).to_pylist()
            assert all(row["calls"] >= 1 for row in rows)
            times += [[row[column] for row in rows] for column in ("round", "time_ms")]
        assert times[0] == times[2]
        again = ratio_of_rounds(times[1], times[3])
        assert (again.value, again.lo, again.hi) == pytest.approx((made.ratio, made.lo, made.hi))


def test_bursts_that_are_not_those_of_the_log(tmp_path, signer):
    run = make_run(tmp_path / "run", QUEUE)
    path = run / "samples.parquet"
    table = pq.read_table(path)
    burst = pc.index(table["regime"], "queue").as_py()
    pq.write_table(pa.concat_tables([table.slice(0, burst), table.slice(burst + 1)]), path)
    seal(run, signer)
    rows = table.num_rows
    broken = verify(run).broken
    assert broken == f"tables: what was signed: samples is {rows - 1} and should be {rows}"
