"""An archive answers queries only from verified runs, each of them once."""

import hashlib
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench.errors import UsageError
from nsabench.evidence.manifest import MANIFEST, dsse, seal
from nsabench.evidence.manifest.seal import describe
from nsabench.signing import Signer
from nsabench.signing.keys import generate, public_pem
from tests.commands import nsabench as nsabench
from tests.evidence.manifest.test_tamper import seal_whatever
from tests.runs import SIGNER, Made, claim_rows, make_run

pytest.importorskip("obstore")
pytest.importorskip("duckdb")
from nsabench.evidence.archive import Archive
from nsabench.evidence.archive.query import query


@pytest.fixture
def archive(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Archive(str(tmp_path / "archive"), create=True)


def folder(archive):
    assert archive.store.folder is not None
    return archive.store.folder


def test_a_run_that_was_put_there_twice_is_answered_by_neither(archive, signed, tmp_path):
    """An attacker with write access adds files without nsabench."""
    other = Archive(str(tmp_path / "other"), create=True)
    run = signed(0)
    archive.add(run)
    archive.add(signed(1))
    shutil.rmtree(run)
    other.add(signed(0, gpu="NVIDIA L4"))
    shutil.copytree(folder(other), folder(archive), dirs_exist_ok=True)
    found = archive.survey()
    assert [run.run_id[-1] for run in found.sound] == ["1"]
    assert len(found.broken) == 2 and all("is in the archive 2 times" in b for b in found.broken)
    answer = query(archive, "SELECT count(*) AS n FROM records JOIN runs USING (run_id)")
    assert answer.to_pylist() == [{"n": 48}]


def resign(archive, prefix, run, change):
    """Replace the manifest of an archived run by a signed one with changed fields."""
    statement = describe(run, SIGNER)
    predicate = statement.predicate.model_copy(update=change(statement.predicate))
    statement = statement.model_copy(update={"predicate": predicate})
    (folder(archive) / prefix / MANIFEST).write_bytes(
        dsse.sign(statement.to_json(), SIGNER.key).to_json()
    )


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("environment", {"gpu": "NVIDIA B200"}, "schema=1/gpu=NVIDIA_B200"),
        ("environment", {"torch": "9.9.9"}, "what was signed: torch is '9.9.9' and should be"),
        ("", {"samples": 641}, "what was signed: samples is 641 and should be 640"),
        ("", {"controls_caught": False}, "what was signed: controls_caught is False"),
    ],
)
def test_a_summary_that_lies(archive, signed, part, change, said):
    run = signed(0)
    _, prefix = archive.add(run)

    def lie(predicate):
        return {part: getattr(predicate, part).model_copy(update=change)} if part else change

    resign(archive, prefix, run, lie)
    [sentence] = archive.survey().broken
    assert said in sentence
    if "gpu" in change:
        moved = folder(archive) / prefix.replace("H200", "B200")
        moved.parent.mkdir()
        (folder(archive) / prefix).rename(moved)
        [sentence] = archive.survey().broken
        assert "what was signed: gpu is 'NVIDIA B200' and should be 'NVIDIA H200'" in sentence


def test_what_was_altered_is_in_no_answer(tmp_path, nsabench, signed):
    archive = Archive(str(tmp_path / "a"), create=True)
    archive.add(signed(0))
    _, prefix = archive.add(signed(1))
    [path] = (folder(archive) / prefix).glob("comparisons-*.parquet")
    table = pq.read_table(path)
    faster = pa.array([9.0] * table.num_rows)
    place = table.schema.get_field_index("ratio")
    pq.write_table(table.set_column(place, "ratio", faster), path)
    asked = "SELECT count(*), max(ratio) FROM records LEFT JOIN comparisons USING ({})"
    asked = asked.format("run_id, case_id, implementation")
    done = nsabench("archive", "query", "a", asked)
    assert done.returncode == 0 and "9.0" not in done.stdout and "48" in done.stdout
    assert "left out" in done.stderr and "was changed after the signature" in done.stderr
    # A user with write access also needs a signature to add a run.
    (folder(archive) / prefix / MANIFEST).write_text("{}")
    assert [run.run_id[-1] for run in archive.runs()] == ["0"]


def test_what_changes_after_it_was_seen_is_read_again(archive, signed):
    _, prefix = archive.add(signed(0))
    assert len(archive.runs()) == 1
    [path] = (folder(archive) / prefix).glob("samples-*.parquet")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert archive.runs() == [], "another content of the same name and size"


def test_a_key_leaves_out_what_others_signed(tmp_path, nsabench, signed):
    other = Signer(Ed25519PrivateKey.generate(), ephemeral=True)
    strange = make_run(tmp_path / "strange", Made(run_id="strange"), signer=other)
    seal(strange, other)
    (tmp_path / "mine.pub").write_bytes(public_pem(SIGNER.key.public_key()))
    archive = Archive(str(tmp_path / "a"), create=True)
    for run in (signed(0), strange):
        archive.add(run)
    asked = ("archive", "query", "a", "SELECT DISTINCT run_id FROM comparisons", "--json")
    done = nsabench(*asked, "--key", "mine.pub")
    assert [row["run_id"][-1] for row in json.loads(done.stdout)] == ["0"]
    assert "strange" in done.stderr
    assert len(json.loads(nsabench(*asked).stdout)) == 2
    generate(tmp_path / "nobody.key", b"long enough to be one")
    done = nsabench(*asked, "--key", "nobody.key.pub")
    assert done.returncode == 4 and "strange" in done.stderr, "no run answers, and it says why"


REFUSED = (
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_parquet('{table}')",
    "SELECT (SELECT max(content) FROM read_text('/etc/passwd')) FROM runs",
    "COPY (SELECT 1) TO '{away}'",
    "COPY runs TO '{table}'",
    "WITH q AS (COPY runs TO '{away}' (USE_TMP_FILE false)) SELECT * FROM q",
    "SELECT 1; COPY runs TO '{away}'",
    "EXPORT DATABASE '{away}'",
    "ATTACH '{away}'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET memory_limit = '1TB'",
    "SELECT getenv('HOME')",
    "SELECT * FROM archive",
    "SELECT nothing FROM runs",
    "",
    "(" * 3000,
)


def test_a_query_reaches_no_file_and_changes_no_setting(archive, signed, tmp_path):
    _, prefix = archive.add(signed(0))
    [table] = (folder(archive) / prefix).glob("records-*.parquet")
    away, before = tmp_path / "away", table.read_bytes()
    for sql in REFUSED:
        with pytest.raises(UsageError) as refused:
            query(archive, sql.format(table=table, away=away))
        assert refused.value.remedy, sql
        assert not away.exists() and table.read_bytes() == before, sql


def test_questions_that_are_allowed(archive, signed):
    archive.add(signed(0))
    for sql in (
        "WITH q AS (SELECT * FROM records) SELECT count(*) FROM q JOIN samples USING (case_id)",
        "FROM Records SELECT count(*)",
        "SELECT * FROM main.runs",
        "SELECT * FROM range(3), unnest([1, 2])",
        "SUMMARIZE runs",
        "DESCRIBE records",
        "VALUES (1), (2)",
        "SELECT x FROM (SELECT 1 AS x) UNION ALL SELECT 2",
    ):
        assert query(archive, sql).num_rows > 0, sql


def test_a_query_that_takes_too_much(archive, signed):
    archive.add(signed(0))
    with pytest.raises(UsageError, match=r"takes more than 0\.2 s"):
        query(
            archive,
            "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b",
            patience_s=0.2,
        )
    with pytest.raises(UsageError, match="the answer has more than 512 MiB"):
        query(archive, "SELECT * FROM range(10000000000)")
    with pytest.raises(UsageError, match="Out of Memory"):
        query(archive, "SELECT list(repeat('a', 1000) || range) FROM range(10000000)")


def test_a_table_of_endless_rows_is_not_opened(archive, signed):
    """In an archive, no log says how many rows a table may have."""
    run = signed(0)
    _, prefix = archive.add(run)
    samples = pq.read_table(run / "samples.parquet")
    pq.write_table(pa.concat_tables([samples] * 500), run / "samples.parquet")
    claim_rows(run / "samples.parquet", 51_000_000)
    seal_whatever(run, SIGNER)
    digest = hashlib.sha256((run / "samples.parquet").read_bytes()).hexdigest()
    stored = folder(archive) / prefix
    shutil.copy(run / "samples.parquet", stored / f"samples-{digest[:16]}.parquet")
    shutil.copy(run / MANIFEST, stored)
    [sentence] = archive.survey().broken
    assert "rows, more than 50000000" in sentence
