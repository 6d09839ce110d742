"""Every change to a signed run is found, and the first broken file or field is named."""

import base64
import errno
import hashlib
import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench import conclusion, limits
from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest import MANIFEST, dsse, seal, verify
from nsabench.evidence.manifest.statement import Trust
from nsabench.files import unfinished
from nsabench.output.report import Facts
from nsabench.signing import Signer
from nsabench.signing.signer import make_run_key
from tests.runs import Made, make_run


def test_an_unharmed_run_passes_every_check(run, signer):
    report = verify(run, trusted=[signer.keyid])
    assert report.broken is None, report.broken
    assert set(report.outcomes.values()) == {"ok"}
    assert (report.trust, report.keyid) == (Trust.PINNED, signer.keyid)


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "name",
    [
        *("records.parquet", "samples.parquet", "plan.json", "environment.json", "log.jsonl"),
        "logs/*.log",
    ],
)
@pytest.mark.parametrize("part", [0.0, 0.5, 0.999])
def test_one_bit_of_a_file(run, name, part):
    [path] = run.glob(name)
    flip(path, int(part * (path.stat().st_size - 1)))
    name = path.relative_to(run).as_posix()
    assert verify(run).broken == f"hashes: {name} was changed after the signature"


def test_every_byte_of_the_manifest(run):
    """Every third byte is changed. A change may pass only if the parsed JSON is the same."""
    path = run / MANIFEST
    original = path.read_bytes()
    envelope = json.loads(original)
    for offset in range(0, len(original), 3):
        changed = bytearray(original)
        changed[offset] ^= 1
        path.write_bytes(changed)
        broken = verify(run, tables=False).broken
        try:
            same = json.loads(changed) == envelope
        except ValueError:
            same = False
        assert same or broken, f"byte {offset} ({original[offset : offset + 1]!r})"


Change = Callable[[Path], object]


def rewrite(run, change):
    """Change the envelope without a new signature."""
    envelope = json.loads((run / MANIFEST).read_text())
    change(envelope)
    (run / MANIFEST).write_text(json.dumps(envelope))


def resign(run, change, signer):
    """Change the statement and sign it again, as a dishonest owner of the key could."""
    envelope = json.loads((run / MANIFEST).read_text())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(statement)
    payload = json.dumps(statement).encode()
    (run / MANIFEST).write_bytes(dsse.sign(payload, signer.key).to_json())


def replace_table(path, change):
    pq.write_table(change(pq.read_table(path)), path)


PRINTED = "logs/0123456789ab.log"
# How a run is altered, and the check that finds it.
TAMPERED = {
    "added file": (lambda r: (r / "manifest.sigstore.json").write_text("x"), "folder"),
    "added page": (lambda r: (r / "report.html").write_text("x"), "files"),
    "added log": (lambda r: (r / PRINTED).write_text("x"), "files"),
    "key of another": (lambda r: make_run_key(r), "files"),
    "removed file": (lambda r: (r / "environment.json").unlink(), "files"),
    "removed manifest": (lambda r: (r / MANIFEST).unlink(), "manifest"),
    "NaN": (lambda r: (r / MANIFEST).write_text('{"payload": NaN}'), "manifest"),
    "deep JSON": (lambda r: (r / MANIFEST).write_text("[" * 10**6), "manifest"),
    "huge JSON": (lambda r: os.truncate(r / MANIFEST, limits.MANIFEST + 1), "manifest"),
    "link out of the folder": (
        lambda r: (r / "logs" / "passwd").symlink_to("/etc/passwd"),
        "folder",
    ),
    "link in place of a file": (lambda r: link_in_place_of(r / "plan.json"), "folder"),
    "folder that is a link": (lambda r: link_in_place_of(r / "logs"), "folder"),
    "pipe": (lambda r: os.mkfifo(r / "pipe"), "folder"),
    "odd name": (lambda r: (r / "a\nb").write_text(""), "folder"),
    "keyid": (
        lambda r: rewrite(r, lambda e: e["signatures"][0].update(keyid="0" * 64)),
        "signature",
    ),
    "no signature": (lambda r: rewrite(r, lambda e: e.update(signatures=[])), "signature"),
    "two signatures": (
        lambda r: rewrite(r, lambda e: e.update(signatures=e["signatures"] * 2)),
        "signature",
    ),
    "payload type": (
        lambda r: rewrite(r, lambda e: e.update(payloadType="application/json")),
        "manifest",
    ),
    "loose base64": (
        lambda r: rewrite(r, lambda e: e.update(payload=e["payload"][:-4] + "fR==")),
        "signature",
    ),
    "signature of something else": (
        lambda r: rewrite(r, lambda e: e["signatures"][0].update(sig="A" * 86 + "==")),
        "signature",
    ),
}


def link_in_place_of(path):
    outside = path.parent.parent / path.name
    path.rename(outside)
    path.symlink_to(outside)


@pytest.mark.parametrize("how", TAMPERED)
def test_tampering(run, how):
    change, check = TAMPERED[how]
    change(run)
    report = verify(run)
    assert report.broken is not None and report.broken.startswith(f"{check}: "), report.broken
    with pytest.raises(VerificationFailed) as raised:
        report.raise_if_broken()
    assert raised.value.exit_code == 4 and raised.value.remedy


def drop_subject(statement):
    statement["subject"] = [s for s in statement["subject"] if s["name"] != "plan.json"]


SIGNED_NONSENSE = {
    "../": (lambda s: s["subject"][0].update(name="../secret"), "statement: "),
    "twice": (lambda s: s["subject"].append(s["subject"][0]), "statement: "),
    "no plan": (drop_subject, "statement: "),
    "another run": (lambda s: s["predicate"].update(run_id="x"), "plan: "),
    "a path for a run": (lambda s: s["predicate"].update(run_id="../x"), "signature: "),
    "counts": (lambda s: s["predicate"].update(samples=1), "tables: "),
    "huge count": (lambda s: s["predicate"].update(samples=10**30), "signature: "),
    "short hash": (lambda s: s["subject"][0].update(digest={"sha256": "0"}), "signature: "),
    "another type": (lambda s: s.update(predicateType="urn:x"), "signature: "),
    "uncaught": (
        lambda s: s["predicate"].update(controls_caught=False),
        "tables: what was signed: controls_caught is False",
    ),
    **{
        field: (
            lambda s, x={field: value}: s["predicate"]["environment"].update(x),
            f"environment: environment.json: {field} is",
        )
        for field, value in (
            ("gpu", "NVIDIA B300"),
            ("commits", {"nsabench": "0" * 40}),
            ("complete", True),
        )
    },
}


@pytest.mark.parametrize("how", SIGNED_NONSENSE)
def test_nonsense_with_a_good_signature(run, signer, how):
    change, check = SIGNED_NONSENSE[how]
    resign(run, change, signer)
    assert (verify(run).broken or "it passes").startswith(check), how


def test_a_swapped_key(run, signer):
    """A key cannot sign a run that was measured in the name of another key."""
    seal(run, Signer(Ed25519PrivateKey.generate(), ephemeral=False))
    broken = verify(run, trusted=[signer.keyid]).broken or ""
    assert broken.startswith("origin: log.jsonl: its key")


@pytest.mark.parametrize(
    ("gpu", "broken"), [("NVIDIA H200 MIG 1g.18gb", ""), ("NVIDIA L4", "origin: environment.json")]
)
def test_an_environment_of_another_gpu_than_the_records(tmp_path, signer, gpu, broken):
    """If a slice of a GPU is measured, the records name the slice and environment.json the GPU."""
    made = Made(gpu=gpu, environment_gpu="NVIDIA H200")
    run = make_run(tmp_path / "run", made, signer=signer)
    seal(run, signer)
    found = verify(run).broken or ""
    assert found.startswith(broken) and bool(found) is bool(broken), found


def set_column(name, value):
    """Return a change that sets a column to `value` or, if it is a function, to `value(column)`."""

    def change(table):
        column = value(table[name]) if callable(value) else pa.array([value] * table.num_rows)
        return table.set_column(table.schema.get_field_index(name), name, column)

    return change


def first_set_to(name, value):
    return set_column(name, lambda c: pa.array([value, *c.to_pylist()[1:]], c.type))


# A table, what a dishonest owner of the key changes in it, and how the first difference is named.
FORGED = {
    "a median": (
        "comparisons",
        set_column("median_ms", lambda column: pc.divide(column, 40)),
        "median_ms of mine on ",
    ),
    "a verdict": ("comparisons", first_set_to("verdict", "faster"), "is 'faster', and 'slower'"),
    "no verdict": ("comparisons", first_set_to("verdict", None), "is None, and 'slower'"),
    "a GPU": ("records", set_column("gpu_name", "NVIDIA B300"), "gpu_name of mine on "),
    "no number": ("samples", first_set_to("time_ms", float("nan")), "time_ms of mine on "),
    "a row less": ("samples", lambda t: t.slice(1), "has 639 rows, and 640 follow from the log"),
    "a row twice": ("records", lambda t: pa.concat_tables([t, t[:1]]), "has 49 rows, and 48 "),
    "a column more": ("records", lambda t: t.append_column("x", t["op"]), "has other columns: x"),
    "a column twice": ("records", lambda t: t.append_column("op", t["op"]), "has 2 columns op"),
    "two names": ("records", lambda t: t.append_column("OP", t["op"]), "has a column 'OP', "),
    "no column": ("records", lambda t: t.drop_columns(["run_id"]), "has no column run_id"),
    "text": ("samples", set_column("time_ms", "x"), "has string in column time_ms and not double"),
    "no text": (
        "records",
        set_column("status", lambda c: pa.array([b"\xff"] * len(c)).view(pa.string())),
        "cannot be read",
    ),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_table_that_does_not_follow_from_the_log(run, signer, how):
    """The run is signed again with its own key, which the reader trusts."""
    table, change, expected = FORGED[how]
    replace_table(run / f"{table}.parquet", change)
    seal_whatever(run, signer)
    broken = verify(run, trusted=[signer.keyid]).broken or "it passes"
    assert broken.startswith(f"tables: {table}.parquet") and expected in broken, broken
    (run / MANIFEST).unlink()
    assert verify(run, require=Trust.UNSIGNED).broken == broken


def seal_whatever(run, signer):
    """Sign the files as they are, also those that `seal` would refuse."""

    def change(statement):
        for subject in statement["subject"]:
            content = (run / subject["name"]).read_bytes()
            subject["digest"]["sha256"] = hashlib.sha256(content).hexdigest()

    resign(run, change, signer)


# A text in thresholds.yaml, the text that replaces it, and how the difference is named.
FORGED_THRESHOLDS = {
    "a length": ("    NVIDIA H200: 256\n", "    NVIDIA H200: 64\n", "NVIDIA H200 is 64, and 256"),
    "an answer": ("  answer: from\n", "  answer: 'no'\n", "answer is no, and from follows"),
    "a key more": ("\npays: []\n", "\npays: []\nmore: 1\n", "more is 1, and None follows"),
    "a key twice": ("\npays: []\n", "\npays: []\npays: []\n", "pays is given twice"),
    "a document more": ("\npays: []\n", "\npays: []\n---\n", "several documents"),
}


@pytest.mark.parametrize("how", FORGED_THRESHOLDS)
def test_thresholds_that_do_not_follow_from_the_log(run, signer, how):
    """A gate reads thresholds.yaml, so all of it must follow from the log."""
    path = conclusion.derive(Facts.read(run), run)[-1]
    seal(run, signer)
    assert verify(run).broken is None
    before, after, expected = FORGED_THRESHOLDS[how]
    text = path.read_text()
    assert before in text, text
    path.write_text(text.replace(before, after, 1))
    seal(run, signer)
    broken = verify(run, trusted=[signer.keyid]).broken or "it passes"
    assert broken.startswith("tables: ") and expected in broken, broken


def test_a_table_that_another_pyarrow_wrote(run, signer):
    """The bytes of the table differ, and its values do not."""
    path = run / "samples.parquet"
    assert "byte for byte" in verify(run).details["tables"]
    replace_table(path, lambda table: table)
    seal(run, signer)
    report = verify(run)
    assert report.broken is None
    assert "the bytes of samples.parquet are not compared (parquet-cpp" in report.details["tables"]
    table = pq.read_table(path)
    pq.write_table(table, path, row_group_size=100)
    seal(run, signer)
    assert (
        verify(run).broken
        == "tables: samples.parquet has other groups of rows than nsabench writes"
    )


def test_bounds_that_are_not_of_the_values(run, signer):
    """A reader that trusts the bounds of a column leaves rows out, as DuckDB does for `WHERE lo >
    1`."""
    path = run / "comparisons.parquet"
    table = pq.read_table(path)
    pq.write_table(table, path)
    content, greatest = path.read_bytes(), struct.pack("<d", pc.max(table["lo"]).as_py())
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    path.write_bytes(content[:footer] + content[footer:].replace(greatest, struct.pack("<d", 0.25)))
    assert pq.read_table(path).equals(table)
    seal(run, signer)
    broken = verify(run).broken
    assert broken == "tables: comparisons.parquet: the stored greatest value of lo is wrong"


def test_tables_of_another_version(run, signer, monkeypatch):
    """Only columns that both versions have are compared, and the remedy names the versions."""
    monkeypatch.setattr("nsabench.evidence.manifest.tables.__version__", "9.9.9")
    replace_table(run / "records.parquet", lambda t: t.drop_columns(["mae"]))
    seal(run, signer)
    assert verify(run).broken is None
    replace_table(run / "records.parquet", set_column("rel_l2", 1.0))
    seal(run, signer)
    report = verify(run)
    assert (report.broken or "").startswith("tables: records.parquet: rel_l2 of mine on ")
    assert "this is nsabench 9.9.9" in report.remedy


def test_a_run_of_an_op_that_is_not_here(run, monkeypatch):
    """A file that only the run names is not executed, and tables that cannot be derived do not
    pass."""
    monkeypatch.setattr("nsabench.ops.has_op_of", lambda plan: False)
    report = verify(run)
    assert (report.broken or "").startswith("tables: they cannot be derived: this run was made")
    assert "--ops" in report.remedy
    assert verify(run, tables=False).broken is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[:-1], " is missing"),
        (lambda lines: [], "it is empty"),
        (lambda lines: lines[1:], "line 1 does not say who measured"),
        (lambda lines: [lines[0], *lines[2:]], "line 2 does not follow the line before it"),
        (lambda lines: [*lines, lines[-1]], "line 82 does not follow the line"),
        (lambda lines: [lines[0], lines[1].replace(b'"seed":1', b'"seed":2')], "line 2 is not"),
        (
            lambda lines: [re.sub(rb',"signer":{.*?}', b"", lines[0]), *lines[1:]],
            "line 1 does not say who measured",
        ),
    ],
    ids=["its end", "all", "its beginning", "a line", "one more", "a value", "a signer"],
)
def test_a_log_that_was_altered_and_signed_again(run, signer, change, said):
    path = run / "log.jsonl"
    before = path.read_bytes().splitlines(keepends=True)
    changed = change(before)
    assert changed != before
    path.write_bytes(b"".join(changed))
    seal(run, signer)
    broken = verify(run).broken or ""
    assert broken.startswith("log: log.jsonl: ") and said in broken, broken


def test_what_a_killed_seal_left_is_none_of_the_run(run, signer):
    unfinished(run / MANIFEST).write_text('{"payload": "torn')
    seal(run, signer)
    assert verify(run).broken is None


def test_a_seal_that_fails_leaves_the_earlier_signature(run, signer, monkeypatch):
    notes = run / "my notes.txt"
    notes.write_text("x")
    with pytest.raises(VerificationFailed, match=r"notes\.txt' is not a file"):
        seal(run, signer)
    notes.unlink()
    assert verify(run).broken is None

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            seal(run, signer)
    assert verify(run).broken is None
