"""Whatever is done to a signed run is found, and the first broken thing is named."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench import limits
from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest import MANIFEST, dsse, seal, verify
from nsabench.evidence.manifest.statement import Trust
from nsabench.files import unfinished
from nsabench.signing import Signer


def test_an_unharmed_run_passes_every_check(run: Path, signer: Signer) -> None:
    report = verify(run, trusted=[signer.keyid])
    assert report.broken is None, report.broken
    assert set(report.outcomes.values()) == {"ok"}
    assert (report.trust, report.keyid) == (Trust.PINNED, signer.keyid)


def flip(path: Path, offset: int) -> None:
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
@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.999])
def test_one_bit_of_a_file(run: Path, name: str, part: float) -> None:
    [path] = run.glob(name)
    flip(path, int(part * (path.stat().st_size - 1)))
    name = path.relative_to(run).as_posix()
    assert verify(run).broken == f"hashes: {name} was changed after the signature"


def test_every_byte_of_the_manifest(run: Path) -> None:
    """No byte of payload, signature, keyid or type may change; blanks between fields may."""
    path = run / MANIFEST
    original = path.read_bytes()
    envelope = json.loads(original)
    for offset in range(0, len(original), 3):
        changed = bytearray(original)
        changed[offset] ^= 1
        path.write_bytes(changed)
        broken = verify(run).broken
        try:
            same = json.loads(changed) == envelope
        except ValueError:
            same = False
        assert same or broken, f"byte {offset} ({original[offset : offset + 1]!r})"


Change = Callable[[Path], object]


def rewrite(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the envelope without being able to sign it again."""
    envelope = json.loads((run / MANIFEST).read_text())
    change(envelope)
    (run / MANIFEST).write_text(json.dumps(envelope))


def resign(run: Path, change: Callable[[dict[str, Any]], object], signer: Signer) -> None:
    """What a dishonest owner of the key could make."""
    envelope = json.loads((run / MANIFEST).read_text())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(statement)
    payload = json.dumps(statement).encode()
    (run / MANIFEST).write_bytes(dsse.sign(payload, signer.key).to_json())


def replace_table(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def first_time_set_to(value: float) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        times = pa.array([value, *table["time_ms"].to_pylist()[1:]])
        return table.set_column(table.schema.get_field_index("time_ms"), "time_ms", times)

    return change


TAMPERED: dict[str, tuple[Change, str]] = {
    "added file": (lambda r: (r / "extra.txt").write_text("x"), "files: extra.txt was added"),
    "added log": (lambda r: (r / "logs" / "x.log").write_text("x"), "files: logs/x.log was added"),
    "removed file": (lambda r: (r / "environment.json").unlink(), "files: environment.json is mis"),
    "removed manifest": (lambda r: (r / MANIFEST).unlink(), "manifest: there is no manifest"),
    "empty manifest": (lambda r: (r / MANIFEST).write_bytes(b""), "manifest: the manifest is not"),
    "NaN": (lambda r: (r / MANIFEST).write_text('{"payload": NaN}'), "manifest: the manifest is n"),
    "deep JSON": (
        lambda r: (r / MANIFEST).write_text("[" * 10**6),
        "manifest: the manifest is not",
    ),
    "huge JSON": (
        lambda r: os.truncate(r / MANIFEST, limits.MANIFEST + 1),
        "manifest: manifest.dsse.json has more than",
    ),
    "link out of the folder": (
        lambda r: (r / "logs" / "passwd").symlink_to("/etc/passwd"),
        "folder: logs/passwd is a link",
    ),
    "link in place of a file": (
        lambda r: (
            (r / "plan.json").rename(r.parent / "plan.json"),
            (r / "plan.json").symlink_to(r.parent / "plan.json"),
        ),
        "folder: plan.json is a link",
    ),
    "folder that is a link": (
        lambda r: ((r / "logs").rename(r.parent / "l"), (r / "logs").symlink_to(r.parent / "l")),
        "folder: logs is a link",
    ),
    "pipe": (lambda r: os.mkfifo(r / "pipe"), "folder: pipe is neither"),
    "odd name": (
        lambda r: (r / "a\nb").write_text(""),
        "folder: a file has a name that no run has",
    ),
    "keyid": (
        lambda r: rewrite(r, lambda e: e["signatures"][0].update(keyid="0" * 64)),
        "signature: the manifest names the key",
    ),
    "no signature": (
        lambda r: rewrite(r, lambda e: e.update(signatures=[])),
        "signature: the manifest has 0 signatures",
    ),
    "two signatures": (
        lambda r: rewrite(r, lambda e: e.update(signatures=e["signatures"] * 2)),
        "signature: the manifest has 2 signatures",
    ),
    "payload type": (
        lambda r: rewrite(r, lambda e: e.update(payloadType="application/json")),
        "manifest: the manifest holds 'application/json'",
    ),
    "loose base64": (
        lambda r: rewrite(r, lambda e: e.update(payload=e["payload"][:-4] + "fR==")),
        "signature: the payload is not",
    ),
    "signature of something else": (
        lambda r: rewrite(
            r, lambda e: e["signatures"][0].update(sig=base64.b64encode(bytes(64)).decode())
        ),
        "signature: the signature does not fit",
    ),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_tampering(run: Path, how: str) -> None:
    change, expected = TAMPERED[how]
    change(run)
    report = verify(run)
    assert report.broken is not None and report.broken.startswith(expected), report.broken
    with pytest.raises(VerificationFailed) as raised:
        report.raise_if_broken()
    assert raised.value.exit_code == 4 and raised.value.remedy


def drop_subject(statement: dict[str, Any]) -> None:
    statement["subject"] = [s for s in statement["subject"] if s["name"] != "plan.json"]


SIGNED_NONSENSE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "../": (lambda s: s["subject"][0].update(name="../secret"), "statement: the statement names"),
    "absolute": (lambda s: s["subject"][0].update(name="/etc/passwd"), "statement: the statement"),
    "twice": (lambda s: s["subject"].append(s["subject"][0]), "statement: the statement names a f"),
    "no plan": (drop_subject, "statement: the statement does not speak of plan.json"),
    "another run": (lambda s: s["predicate"].update(run_id="x"), "plan: plan.json: run_id is"),
    "a path for a run": (
        lambda s: s["predicate"].update(run_id="../x"),
        "signature: the statement",
    ),
    "counts": (lambda s: s["predicate"].update(samples=1), "samples: samples.parquet: rows is"),
    "huge count": (lambda s: s["predicate"].update(samples=10**30), "signature: the statement is"),
    "short hash": (
        lambda s: s["subject"][0].update(digest={"sha256": "0"}),
        "signature: the state",
    ),
    "another type": (lambda s: s.update(predicateType="urn:x"), "signature: the statement is not"),
    "another cases": (lambda s: s["predicate"]["plan"].update(cases=1), "plan: plan.json is"),
}


@pytest.mark.parametrize("how", SIGNED_NONSENSE)
def test_nonsense_with_a_good_signature(run: Path, signer: Signer, how: str) -> None:
    change, expected = SIGNED_NONSENSE[how]
    resign(run, change, signer)
    broken = verify(run).broken
    assert broken is not None and broken.startswith(expected), broken


def test_a_swapped_key(run: Path, signer: Signer) -> None:
    """Nobody can sign what was measured in the name of another key."""
    seal(run, Signer(Ed25519PrivateKey.generate(), ephemeral=False))
    broken = verify(run, trusted=[signer.keyid]).broken or ""
    assert broken.startswith("origin: log.jsonl: the key that it is signed with is")


def unit(run: Path, name: str, change: Callable[[pa.Table], pa.Table], signer: Signer) -> str:
    replace_table(run / name, change)
    seal(run, signer)
    return verify(run).broken or ""


def test_a_signed_run_that_is_not_whole(run: Path, signer: Signer) -> None:
    original = pq.read_table(run / "records.parquet")
    cut = unit(run, "records.parquet", lambda t: t.slice(1), signer)
    assert cut.startswith("records: records.parquet: record ") and "is missing" in cut
    pq.write_table(original, run / "records.parquet")
    cut = unit(run, "samples.parquet", lambda t: t.slice(1), signer)
    assert cut.startswith("samples: samples.parquet: samples of mine on ")
    assert cut.endswith("is 19 and should be 20")


def test_a_sample_that_is_no_number(run: Path, signer: Signer) -> None:
    broken = unit(run, "samples.parquet", first_time_set_to(float("nan")), signer)
    assert broken == "samples: samples.parquet holds a time that is not finite"


def test_records_of_another_run(run: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        ids = pc.replace_substring(table["run_id"], "abc123", "abc124")
        return table.set_column(table.schema.get_field_index("run_id"), "run_id", ids)

    replace_table(run / "records.parquet", change)
    (run / MANIFEST).unlink()
    broken = verify(run, require=Trust.UNSIGNED).broken or ""
    assert "records.parquet: run_id is '20260101T000000Z-abc124'" in broken


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[:-1], " is missing (1 of 1)"),
        (lambda lines: [], "it is empty"),
        (lambda lines: lines[1:], "line 1 does not say who measured"),
        (lambda lines: [lines[0], *lines[2:]], "line 2 does not follow the line before it"),
        (lambda lines: [*lines, lines[-1]], "line 82 does not follow the line"),
        (lambda lines: [lines[0], lines[1].replace(b'"seed":1', b'"seed":2')], "line 2 is not"),
        (
            lambda lines: [re.sub(rb',"certificate":{.*?}', b"", lines[0]), *lines[1:]],
            "line 1 does not say who measured",
        ),
    ],
    ids=["its end", "all", "its beginning", "a line", "one more", "a value", "a certificate"],
)
def test_a_log_that_was_altered_and_signed_again(
    run: Path, signer: Signer, change: Callable[[list[bytes]], list[bytes]], said: str
) -> None:
    path = run / "log.jsonl"
    before = path.read_bytes().splitlines(keepends=True)
    changed = change(before)
    assert changed != before
    path.write_bytes(b"".join(changed))
    seal(run, signer)
    broken = verify(run).broken or ""
    assert broken.startswith("log: log.jsonl: ") and said in broken, broken


def test_an_unsigned_run_passes_only_where_that_is_enough(run: Path) -> None:
    (run / MANIFEST).unlink()
    assert verify(run).broken == f"manifest: there is no {MANIFEST}: the run is unsigned"
    report = verify(run, require=Trust.UNSIGNED)
    assert report.broken is None and report.trust is Trust.UNSIGNED
    # Without hashes a flipped value may pass; a file that is no Parquet any more may not.
    table = run / "records.parquet"
    table.write_bytes(table.read_bytes()[:-100])
    assert (verify(run, require=Trust.UNSIGNED).broken or "").startswith("records: ")


def test_what_a_killed_seal_left_is_none_of_the_run(run: Path, signer: Signer) -> None:
    unfinished(run / MANIFEST).write_text('{"payload": "torn')
    seal(run, signer)
    assert verify(run).broken is None


def test_a_seal_that_fails_leaves_the_earlier_signature(
    run: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = run / "my notes.txt"
    notes.write_text("x")
    with pytest.raises(VerificationFailed, match="a name that no run has"):
        seal(run, signer)
    notes.unlink()
    assert verify(run).broken is None

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        seal(run, signer)
    assert verify(run).broken is None


def put(column: str, values: Callable[[int], pa.Array]) -> Callable[[pa.Table], pa.Table]:
    def change(t: pa.Table) -> pa.Table:
        return t.set_column(t.schema.get_field_index(column), column, values(t.num_rows))

    return change


@pytest.mark.parametrize(
    ("table", "change", "said"),
    [
        (
            "samples",
            put("time_ms", lambda n: pa.array(["x"] * n)),
            "has string in column time_ms and not double",
        ),
        (
            "records",
            put("case_id", lambda n: pa.array([1] * n)),
            "has int64 in column case_id and not string",
        ),
        (
            "records",
            put("case_id", lambda n: pa.array([["x"]] * n)),
            "has list<element: string> in column case_id and not string",
        ),
        ("records", lambda t: t.append_column("status", t["status"]), "has 2 columns status"),
        ("records", lambda t: t.drop_columns(["reason"]), "has no column reason"),
        (
            "records",
            lambda t: pa.concat_tables(
                [t, put("case_id", lambda n: pa.nulls(n, pa.string()))(t.slice(0, 1))]
            ),
            "mine on None has no case_id",
        ),
        (
            "records",
            put("status", lambda n: pa.array([b"\xff"] * n).view(pa.string())),
            "cannot be read",
        ),
    ],
)
def test_columns_that_are_none(
    run: Path, table: str, change: Callable[[pa.Table], pa.Table], said: str
) -> None:
    replace_table(run / f"{table}.parquet", change)
    (run / MANIFEST).unlink()
    broken = verify(run, require=Trust.UNSIGNED).broken or ""
    assert broken.startswith(f"{table}: {table}.parquet") and said in broken, broken


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("records", {"op": None}, "has no op"),
        ("records", {"status": "wrong", "reason": ""}, "is wrong without a reason"),
        ("records", {"status": "wrong", "reason": None}, "is wrong without a reason"),
        ("comparisons", {"verdict": "great"}, "has the verdict 'great', which is none"),
        ("comparisons", {"regime": None}, "has no regime"),
        ("comparisons", {"implementation": "none"}, "is no record"),
        ("comparisons", {"implementation": "zero_output"}, "is wrong and yet has a ratio"),
        ("comparisons", {}, "is there twice for device and baseline"),
    ],
)
def test_the_one_row_that_is_none_is_named(
    run: Path, name: str, changed: dict[str, Any], said: str
) -> None:
    path = run / f"{name}.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[-1].update(changed or rows[0])
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    where = f"{name}.parquet: {rows[-1]['implementation']} on {rows[-1]['case_id']}"
    (run / MANIFEST).unlink()
    assert verify(run, require=Trust.UNSIGNED).broken == f"{name}: {where} {said}"
