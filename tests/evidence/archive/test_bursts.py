"""The intervals of the regime `queue` can be computed again from the bursts in an archive."""

import pytest

from nsabench.evidence.archive import Archive
from nsabench.evidence.archive.query import query
from nsabench.model.vocabulary import Regime, Role
from nsabench.verdicts.statistics import ratio_of_rounds
from nsabench.verdicts.tables import read_records

ASKED = """SELECT round, time_ms, calls FROM samples
           WHERE regime = 'queue' AND case_id = '{}' AND implementation = '{}' ORDER BY round"""


def test_intervals_of_the_queue_are_made_again_of_what_is_archived(tmp_path, signed):
    run = signed(ratio=lambda _: 1.5, queue_ratio=lambda length: 0.8 if length < 256 else 1.3)
    archive = Archive(str(tmp_path / "archive"), create=True)
    archive.add(run)
    judged = [r for r in read_records(run) if r.role is Role.CANDIDATE]
    compared = [c for r in judged if (c := r.compared(Regime.QUEUE)) is not None]
    assert len(compared) == len(judged) and len({c.verdict for c in compared}) == 2
    for made in compared[::3]:  # of several lengths
        times = []
        for name in (made.against, made.implementation):
            rows = query(archive, ASKED.format(made.case_id, name)).to_pylist()
            assert all(row["calls"] >= 1 for row in rows)
            times += [[row[column] for row in rows] for column in ("round", "time_ms")]
        assert times[0] == times[2]
        again = ratio_of_rounds(times[1], times[3])
        assert (again.value, again.lo, again.hi) == pytest.approx((made.ratio, made.lo, made.hi))
