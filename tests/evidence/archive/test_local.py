"""An archive in a folder holds only whole runs, allows concurrent writers, and answers queries."""

import json
import resource
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from nsabench.errors import EnvironmentRefused, VerificationFailed
from nsabench.evidence.manifest import MANIFEST, dsse, seal
from nsabench.evidence.manifest.seal import describe
from tests.commands import nsabench as nsabench
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
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: archive.add(run)[0], range(8)))
    assert sorted(answers) == sorted([Added.ADDED] + [Added.THERE] * 7)
    assert check(archive) == (1, [], 0)


def test_another_run_with_the_same_id_is_refused(archive, signed):
    """Also a run that names another GPU, and would be stored elsewhere."""
    run = signed()
    archive.add(run)
    names = archive.store.names()
    (run / "logs" / "0123456789ab.log").write_text("x")
    seal(run, SIGNER)
    shutil.move(run, run.with_name("first"))
    for other in (run.with_name("first"), signed(gpu="NVIDIA L4")):
        with pytest.raises(VerificationFailed, match="another run with the id"):
            archive.add(other)
    assert archive.store.names() == names and check(archive) == (1, [], 0)


def test_readers_see_whole_runs_only(archive, signed):
    archive.add(signed(0))
    _, prefix = archive.add(signed(1))
    assert archive.store.folder is not None
    (archive.store.folder / prefix / "manifest.dsse.json").unlink()
    assert [k.run_id for k in archive.runs()] == ["20260101T000000Z-000000"]
    assert query(archive, "SELECT DISTINCT run_id FROM samples").num_rows == 1
    assert check(archive) == (1, [], 3)


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
    assert "2 of 3 runs are broken" in done.stderr and "sound runs: 1" in done.stdout


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
