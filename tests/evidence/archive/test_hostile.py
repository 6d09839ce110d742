"""Hostile objects, written into an archive by a user with write access, spoil no answer."""

import hashlib
import os
import shutil
import time
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

NAMES = ["a\nb", "x%2Fy", "\x1b[31m", "~", "*?", "é", "..x", os.fsdecode(b"\xff\xfe")]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_strange_name_does_not_keep_the_others_from_being_read(archive, signed, name):
    archive.add(signed(0))
    (folder(archive) / name).mkdir()
    (folder(archive) / name / MANIFEST).write_text("{}")
    (folder(archive) / name / "stray").write_text("")
    (folder(archive) / f"{name}.parquet").write_text("")
    found = archive.survey()
    assert len(found.sound) == 1 and len(found.broken) == 1 and found.stray == 1
    assert found.broken[0].startswith(f"{name}: the manifest is not as it should be")


@pytest.mark.parametrize("target", [".", "/", "/nowhere", "/dev/zero"])
def test_links_lead_nowhere(archive, signed, target):
    archive.add(signed(0))
    names = archive.store.names()
    (folder(archive) / "link").symlink_to(target)
    (folder(archive) / MANIFEST).symlink_to(target)
    assert archive.store.names() == names
    assert len(archive.survey().sound) == 1


@pytest.mark.parametrize("table", ["records", "samples"])
def test_a_table_of_a_terabyte_is_not_hashed(archive, signed, table):
    _, prefix = archive.add(signed(0))
    [path] = (folder(archive) / prefix).glob(f"{table}-*")
    os.truncate(path, 1 << 40)
    surveyed = []
    # In a thread of its own, so that a hash of it ends with the tests.
    Thread(target=lambda: surveyed.append(archive.survey().broken), daemon=True).start()
    for _ in range(600):
        if surveyed:
            break
        time.sleep(0.1)
    assert len(surveyed) == 1 and "has more than" in surveyed[0][0]


def renamed(table, of):
    """Add a column to a table that names another run, under a name that SQL does not tell from
    run_id."""
    column = pa.array(["20260101T000000Z-aaaaaa"] * table.num_rows)
    return table.add_column(0, of, column)


@pytest.mark.parametrize("table", ["records", "comparisons", "samples"])
def test_no_column_is_asked_for_by_the_name_of_another(archive, signed, table):
    """A column `RUN_ID` before `run_id` let the rows count for any run."""
    run = signed(0)
    path = run / f"{table}.parquet"
    pq.write_table(renamed(pq.read_table(path), "RUN_ID"), path)
    seal_whatever(run, SIGNER)
    sentence = "a column 'RUN_ID' that is called run_id"
    with pytest.raises(VerificationFailed, match=sentence):
        archive.add(run)
    # The attacker adds the run without nsabench.
    other = signed(1)
    _, prefix = archive.add(other)
    path = other / f"{table}.parquet"
    pq.write_table(renamed(pq.read_table(path), "RUN_ID"), path)
    seal_whatever(other, SIGNER)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    there = folder(archive) / prefix
    shutil.copy(path, there / f"{table}-{digest[:16]}.parquet")
    shutil.copy(other / MANIFEST, there)
    found = archive.survey()
    assert found.sound == [] and sentence in found.broken[0]
