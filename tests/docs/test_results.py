"""The runs that are kept in docs/results can be read, verify, and take little room."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow.parquet as pq

from nsabench.assessment.checks import proofs
from nsabench.assessment.checks.proofs import Lack
from nsabench.evidence.archive import Archive
from nsabench.evidence.manifest import MANIFEST, verify
from nsabench.evidence.manifest.keys import trusted_keyids
from nsabench.evidence.manifest.statement import Trust
from nsabench.model.record import Record
from nsabench.model.vocabulary import Role
from nsabench.output.compare import compare, read
from nsabench.output.report import Facts, write_markdown
from tests.published import (
    ARCHIVE,
    PACKED,
    PAGE,
    RESULTS,
    TRITONS,
    WHOLE,
    backward_run,
    decode_run,
    tritons_runs,
    whole_run,
)

KEYS = sorted(RESULTS.glob("publisher-*.pub"))
MOST_BYTES = 3_000_000


def test_a_run_that_is_kept_as_a_whole(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    report = verify(run, trusted=trusted_keyids(KEYS), require=Trust.PINNED)
    assert report.broken is None
    found = compare(read([run, run]))
    assert {step.ratio for cell in found.cells for step in cell.shifts} <= {None, 1.0}
    assert f"`{WHOLE.name}`" in (RESULTS / "README.md").read_text()


def test_the_runs_of_five_tritons(tmp_path: Path) -> None:
    runs = tritons_runs(tmp_path)
    for run in runs:
        assert verify(run, trusted=trusted_keyids(KEYS), require=Trust.PINNED).broken is None
    found = compare(read(runs))
    assert len(found.sides) == len(runs) == 5
    changed = {
        (found.later[number].name, cell.implementation)
        for number in range(len(found.later))
        for cell, _ in found.changes(number)
        if cell.role is not Role.CONTROL
    }
    assert changed == {("triton-3.9.0", "nsa_triton"), ("triton-3.9.0", "fsa")}
    assert f"`{TRITONS.name}`" in (RESULTS / "README.md").read_text()


def test_the_archive_of_all_of_them() -> None:
    archive = Archive(str(ARCHIVE))
    found = archive.survey(trusted_keyids(KEYS), Trust.PINNED)
    assert (found.broken, found.stray) == ([], 0)
    listed = (RESULTS / "README.md").read_text()
    assert [run.run_id for run in found.sound if f"`{run.run_id}`" not in listed] == []
    assert len(found.sound) == 5


def test_the_run_with_the_op_decode_is_what_was_signed(tmp_path: Path) -> None:
    run = decode_run(tmp_path, manifest=True)
    report = verify(run, trusted=trusted_keyids(KEYS), require=Trust.PINNED)
    assert report.outcomes["signature"] == "ok"
    assert report.broken is not None and PAGE in report.broken, "the page alone is missing"
    files = {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in run.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }
    assert files == {name: digest for name, digest in report.digests.items() if name != PAGE}


def test_the_run_with_the_op_decode_is_still_read(tmp_path: Path) -> None:
    run = decode_run(tmp_path)
    assert verify(run, require=Trust.UNSIGNED).broken is None
    found = compare(read([run, run]))
    assert {step.ratio for cell in found.cells for step in cell.shifts} <= {None, 1.0}
    text = write_markdown(Facts.read(run), tmp_path / "again").read_text()
    # As it was published, when the 146, 7 and 7 of both regimes were one figure each.
    calls, graphs = "106 faster, 4 same, 5 inconclusive", "40 faster, 3 same, 2 inconclusive"
    assert f"device: {calls}; graph: {graphs} of 160 cases" in text


def test_the_published_runs_say_what_was_not_proven_of_them(tmp_path: Path) -> None:
    """Verdicts are what they were; what no control had shown is said of them since."""
    roofline = "**Unproven:** no control showed that the check roofline (none was there) works for "
    graphs = (
        "**Unproven:** no control showed that the checks timer and baseline (all declined) and "
        "roofline (none was there) work for decode in graph mode."
    )
    run = decode_run(tmp_path)
    text = write_markdown(Facts.read(run), tmp_path / "again").read_text()
    assert graphs in text and f"{roofline}decode." in text
    gradients = backward_run(tmp_path)
    text = write_markdown(Facts.read(gradients), tmp_path / "again").read_text()
    assert "8 faster, 2 slower, 2 inconclusive of 12 cases" in text, "as it was published"
    assert (
        "**Unproven:** no control showed that the checks timer, baseline and roofline (none was "
        "there) work for selection_ranges backward." in text
    )
    assert "Nothing is decided" not in text and "invalid" not in text.partition("## Env")[0]


def test_what_is_archived_has_no_check_that_got_stuck() -> None:
    """Records of all published runs, which hold no column for it."""
    lacking = []
    for run in Archive(str(ARCHIVE)).runs():
        rows = pq.read_table(ARCHIVE / run.object("records")).to_pylist()
        lacking += proofs.of_records([Record.from_row(row) for row in rows])
    assert lacking and not [u for u in lacking if u.lack is Lack.STUCK]


def test_results_are_light() -> None:
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in [*files, *PACKED.iterdir()]) <= MOST_BYTES


def test_pages_stay_small() -> None:
    pages = list(RESULTS.rglob(PAGE))
    assert all(page.stat().st_size < 1_500_000 for page in pages)
