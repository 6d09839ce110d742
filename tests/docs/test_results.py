"""The runs in docs/results verify, are listed there, and take little room."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsabench.evidence.archive import Archive
from nsabench.evidence.manifest.keys import trusted_keyids
from nsabench.evidence.manifest.statement import Trust

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ARCHIVE = RESULTS / "archive"
MOST_BYTES = 3_000_000


@pytest.mark.skipif(not ARCHIVE.is_dir(), reason="no run is published")
def test_archived_runs_verify_and_are_listed() -> None:
    keys = trusted_keyids(tuple(RESULTS.glob("*.pub")))
    found = Archive(str(ARCHIVE)).survey(keys, Trust.PINNED)
    assert (found.broken, found.stray) == ([], 0)
    listed = (RESULTS / "README.md").read_text()
    assert [run.run_id for run in found.sound if f"`{run.run_id}`" not in listed] == []


def test_results_are_light() -> None:
    files = (path for path in RESULTS.rglob("*") if path.is_file())
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
