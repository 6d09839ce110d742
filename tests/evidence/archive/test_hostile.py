"""Hostile objects, written into an archive by a user with write access, spoil no answer."""

import hashlib
import os
import shutil
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest import MANIFEST
from tests.runs import SIGNER

pytest.importorskip("obstore")
pytest.importorskip("duckdb")
from tests.evidence.archive.test_verified import archive as archive
from tests.evidence.archive.test_verified import folder
from tests.evidence.manifest.test_tamper import seal_whatever

NAMES = ["a\nb", "x%2Fy", "\x1b[31m", "*?", "é", "..x", os.fsdecode(b"\xff\xfe")]


def test_strange_names_do_not_keep_the_others_from_being_read(archive, signed):
    archive.add(signed(0))
    for name in NAMES:
        (folder(archive) / name).mkdir()
        (folder(archive) / name / MANIFEST).write_text("{}")
        (folder(archive) / name / "stray").write_text("")
        (folder(archive) / f"{name}.parquet").write_text("")
    found = archive.survey()
    assert (len(found.sound), found.stray) == (1, len(NAMES))
    assert {sentence.rpartition(": the manifest is not as")[0] for sentence in found.broken} == {
        *NAMES
    }


def test_links_lead_nowhere(archive, signed):
    archive.add(signed(0))
    names = archive.store.names()
    for number, target in enumerate((".", "/", "/nowhere", "/dev/zero")):
        (folder(archive) / f"link{number}").symlink_to(target)
        (folder(archive) / str(number)).mkdir()
        (folder(archive) / str(number) / MANIFEST).symlink_to(target)
    assert archive.store.names() == names
    assert len(archive.survey().sound) == 1


def test_a_table_of_a_terabyte_is_not_hashed(archive, signed):
    _, prefix = archive.add(signed(0))
    [path] = (folder(archive) / prefix).glob("samples-*")
    os.truncate(path, 1 << 40)
    surveyed = []
    # The survey runs in a daemon thread: if it hashes the file, it ends with the tests.
    thread = Thread(target=lambda: surveyed.append(archive.survey().broken), daemon=True)
    thread.start()
    thread.join(60)
    assert len(surveyed) == 1 and "has more than" in surveyed[0][0]


def rename(path):
    """Add a column that names another run, under a name that SQL does not tell from run_id."""
    table = pq.read_table(path)
    column = pa.array(["20260101T000000Z-aaaaaa"] * table.num_rows)
    pq.write_table(table.add_column(0, "RUN_ID", column), path)


def test_no_column_is_asked_for_by_the_name_of_another(archive, signed):
    """With `RUN_ID` before `run_id`, the rows could count for any run."""
    run = signed(0)
    path = run / "comparisons.parquet"
    rename(path)
    seal_whatever(run, SIGNER)
    with pytest.raises(VerificationFailed, match="a column 'RUN_ID'"):
        archive.add(run)
    # The attacker adds the run without nsabench.
    other = signed(1)
    _, prefix = archive.add(other)
    path = other / "comparisons.parquet"
    rename(path)
    seal_whatever(other, SIGNER)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    there = folder(archive) / prefix
    shutil.copy(path, there / f"comparisons-{digest[:16]}.parquet")
    shutil.copy(other / MANIFEST, there)
    found = archive.survey()
    assert found.sound == [] and "RUN_ID" in found.broken[0]
