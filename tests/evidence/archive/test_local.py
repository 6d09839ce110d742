"""An archive in a folder holds only whole runs, allows concurrent writers, and answers queries."""

import json
import resource
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from nsabench.errors import EnvironmentRefused, UsageError, VerificationFailed
from nsabench.evidence.manifest import MANIFEST, dsse, seal, verify
from nsabench.evidence.manifest.seal import describe
from nsabench.signing import keys
from tests.cli.conftest import command
from tests.cli.conftest import nsabench as nsabench
from tests.runs import SIGNER

pytest.importorskip("obstore")
pytest.importorskip("duckdb")
from nsabench.evidence.archive import Added, Archive
from nsabench.evidence.archive.query import query


@pytest.fixture
def archive(tmp_path):
    return Archive(str(tmp_path / "archive"), create=True)


def check(archive):
    found = archive.survey()
    return len(found.sound), found.broken, found.stray


def test_adding_twice_is_harmless(archive, signed):
    run = signed()
    outcome, prefix = archive.add(run)
    assert outcome is Added.ADDED
    assert prefix == "schema=1/gpu=NVIDIA_H200/run=20260101T000000Z-000000/"
    before = archive.store.names()
    assert archive.add(run)[0] is Added.THERE
    assert archive.store.names() == before
    assert check(archive) == (1, [], 0)


def test_eight_writers_at_once(archive, signed):
    run = signed()
    line = command("archive", "add", run, "--to", archive.store.folder)
    writers = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    answers = sorted(writer.communicate(timeout=100)[0].partition(":")[0] for writer in writers)
    assert answers == ["added"] + ["already there"] * 7
    assert check(archive) == (1, [], 0)


def test_a_broken_run_is_not_added(archive, signed):
    run = signed()
    (run / "records.parquet").write_bytes(b"PAR1")
    with pytest.raises(VerificationFailed, match=r"records\.parquet was changed"):
        archive.add(run)
    assert archive.store.names() == []


def test_another_run_with_the_same_id_is_refused(archive, signed):
    run = signed()
    archive.add(run)
    (run / "logs" / "0123456789ab.log").write_text("x")
    seal(run, SIGNER)
    with pytest.raises(VerificationFailed, match="another run with the id"):
        archive.add(run)
    assert check(archive) == (1, [], 0)


def test_readers_see_whole_runs_only(archive, signed):
    archive.add(signed(0))
    _, prefix = archive.add(signed(1))
    assert archive.store.folder is not None
    (archive.store.folder / prefix / "manifest.dsse.json").unlink()
    assert [k.run_id for k in archive.runs()] == ["20260101T000000Z-000000"]
    assert query(archive, "SELECT DISTINCT run_id FROM samples").num_rows == 1
    assert check(archive) == (1, [], 3)


def test_questions(archive, signed):
    archive.add(signed(0))
    archive.add(signed(1, gpu="NVIDIA L4"))
    [row] = query(archive, "SELECT count(*) AS n FROM samples").to_pylist()
    assert row["n"] == 2 * 16 * 20 * 2
    answer = query(
        archive,
        "SELECT gpu, count(*) AS n FROM records JOIN runs USING (run_id) "
        "WHERE role = 'candidate' GROUP BY 1 ORDER BY 1",
    )
    assert answer.to_pylist() == [{"gpu": "NVIDIA H200", "n": 16}, {"gpu": "NVIDIA L4", "n": 16}]
    with pytest.raises(UsageError, match="cannot be answered"):
        query(archive, "SELECT nothing FROM runs")


def test_a_column_that_one_run_has_is_null_for_the_other(archive, signed):
    archive.add(signed(0))
    run = signed(7)
    table = pq.read_table(run / "records.parquet")
    table = table.append_column("new_column", pa.array([1.5] * table.num_rows))
    pq.write_table(table, run / "records.parquet")
    seal(run, SIGNER)
    archive.add_verified(verify(run, tables=False))  # as another version of nsabench would
    answer = query(
        archive, "SELECT run_id, max(new_column) AS n FROM records GROUP BY 1 ORDER BY 1"
    )
    assert answer["n"].to_pylist() == [None, 1.5]
    assert query(archive, "SELECT median(time_ms) FROM samples GROUP BY run_id").num_rows == 2


def test_the_commands(tmp_path, nsabench, signed):
    run, bad = signed(0), signed(1)
    (bad / "plan.json").write_text("")
    done = nsabench("archive", "add", bad, run, "--to", "a")
    assert done.returncode == 4 and "added: schema=1" in done.stdout
    assert "plan.json was changed" in done.stderr and "1 of 2 runs" in done.stderr
    verified = nsabench("archive", "verify", "a")
    assert verified.returncode == 0 and "sound runs: 1" in verified.stdout
    done = nsabench("archive", "query", "a", "SELECT count(*) AS n FROM records", "--json")
    assert json.loads(done.stdout) == [{"n": 48}]
    done = nsabench("archive", "verify", "nowhere")
    assert done.returncode == 2 and "archive nowhere does not exist" in done.stderr


def test_the_view_of_runs_is_documented(archive, signed):
    archive.add(signed())
    page = yaml.safe_load((Path(__file__).parents[3] / "docs/reference.yaml").read_text())
    assert set(query(archive, "SELECT * FROM runs").column_names) == set(page["runs"])


def test_a_folder_of_shards_is_skipped(tmp_path, nsabench, signed):
    folder = tmp_path / "whole.shards"
    folder.mkdir()
    signed(1).rename(folder / "1")
    done = nsabench("archive", "add", signed(0), folder, "--to", "a")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("added: ") == 1 and "whole.shards" in done.stderr


def test_a_query_that_no_run_answers_says_why(tmp_path, nsabench, signed):
    Archive(str(tmp_path / "a"), create=True).add(signed(0))
    keys.generate(tmp_path / "other.key", b"long enough to be one")
    asked = ("archive", "query", "a", "SELECT * FROM runs", "--key", "other.key.pub")
    done = nsabench(*asked)
    assert done.returncode == 4
    assert SIGNER.keyid in done.stderr or "ephemeral" in done.stderr


def test_a_full_disk_asks_for_room(archive):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, before[1]))
    try:
        with pytest.raises(EnvironmentRefused) as refused:
            archive.store.create("x", bytes(1 << 16))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "room" in refused.value.remedy and "AWS" not in refused.value.remedy


def test_what_is_gone_is_one_broken_run_and_hides_no_other(tmp_path, nsabench, signed):
    archive = Archive(str(tmp_path / "a"), create=True)
    prefixes = [archive.add(signed(i))[1] for i in range(3)]
    [gone] = (tmp_path / "a" / prefixes[0]).glob("records-*.parquet")
    gone.unlink()
    [spoiled] = (tmp_path / "a" / prefixes[1]).glob("samples-*.parquet")
    spoiled.write_bytes(b"PAR1")
    done = nsabench("archive", "verify", "a")
    assert done.returncode == 4
    assert f"{gone.name} is missing" in done.stderr
    assert "samples.parquet was changed" in done.stderr
    assert "2 of 3 runs are broken" in done.stderr


def test_a_manifest_that_names_no_table_is_broken(archive, signed):
    run = signed()
    _, prefix = archive.add(run)
    statement = describe(run, SIGNER)
    named = [s for s in statement.subject if s.name != "records.parquet"]
    statement = statement.model_copy(update={"subject": named})
    assert archive.store.folder is not None
    (archive.store.folder / prefix / MANIFEST).write_bytes(
        dsse.sign(statement.to_json(), SIGNER.key).to_json()
    )
    _, [sentence], _ = check(archive)
    assert sentence.endswith("its manifest names no records.parquet")
