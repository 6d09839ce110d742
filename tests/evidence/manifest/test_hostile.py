"""Runs that try to hang or crash their verifier are refused with a sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench import limits
from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest import MANIFEST, dsse, files, seal, verify
from nsabench.evidence.manifest.keys import Revocation, Why
from nsabench.evidence.manifest.seal import describe
from nsabench.evidence.manifest.statement import Trust
from nsabench.model.plan import Plan
from nsabench.signing import Signer
from tests.runs import make_run

LOG = "0123456789ab.log"
ME = Signer(Ed25519PrivateKey.generate(), ephemeral=False)


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    run = make_run(tmp_path / "run", signer=ME)
    seal(run, ME)
    return run


def sign(run: Path, change: Callable[[dict], None]) -> None:  # type: ignore[type-arg]
    """Sign a manifest that nsabench itself would not write."""
    statement = json.loads(describe(run, ME).to_json())
    change(statement["predicate"])
    (run / MANIFEST).write_bytes(dsse.sign(json.dumps(statement).encode(), ME.key).to_json())


@pytest.mark.parametrize(
    "when", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "1677-01-01T00:00:00Z"]
)
@pytest.mark.parametrize("which", ["signed", "created"])
def test_a_time_that_no_calendar_holds(sealed: Path, which: str, when: str) -> None:
    """In UTC it lies before the first day, or behind the last; with a list of keys it is asked."""

    def change(predicate: dict) -> None:  # type: ignore[type-arg]
        (predicate if which == "signed" else predicate["plan"])[which] = when

    sign(sealed, change)
    revoked = {ME.keyid: Revocation(date(2027, 1, 1), Why.SUPERSEDED)}
    broken = verify(sealed, revoked=revoked).broken
    assert broken is not None and "from this year" in broken


def test_a_time_without_a_zone_is_one(sealed: Path) -> None:
    sign(sealed, lambda predicate: predicate.update(signed="2026-12-31T23:59:59"))
    assert verify(sealed, revoked={}).broken is None
    superseded = {ME.keyid: Revocation(date(2027, 1, 1), Why.SUPERSEDED)}
    assert verify(sealed, revoked=superseded).broken is None
    superseded = {ME.keyid: Revocation(date(2026, 12, 31), Why.SUPERSEDED)}
    assert "superseded since" in str(verify(sealed, revoked=superseded).broken)


@pytest.mark.parametrize("named", [True, False], ids=["signed", "added"])
def test_a_file_of_a_terabyte_is_not_hashed(
    sealed: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """It takes no room on the disk, nor in an archive of tar."""
    (sealed / "logs" / LOG).write_bytes(b"")
    if named:
        sign(sealed, lambda _: None)
    os.truncate(sealed / "logs" / LOG, 1 << 40)
    hashed: list[str] = []
    monkeypatch.setattr(files, "sha256", lambda folder, name: hashed.append(name))
    assert verify(sealed).broken == "folder: logs/0123456789ab.log has more than 1 GiB"
    assert hashed == []


def test_many_large_files(sealed: Path) -> None:
    for i in range(5):
        (sealed / "logs" / f"{i:012}.log").write_bytes(b"")
        os.truncate(sealed / "logs" / f"{i:012}.log", limits.FILE)
    broken = str(verify(sealed).broken)
    assert broken == "folder: the folder has more than 100000 files or 4 GiB"


def test_a_log_of_very_many_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a seal to check: a GiB of them would take minutes."""
    run = make_run(tmp_path / "run")
    monkeypatch.setattr(limits, "LOG_LINES", 5)
    broken = verify(run, require=Trust.UNSIGNED).broken or ""
    assert broken.startswith("log: log.jsonl: ") and broken.endswith("has more than 5 lines")


def test_a_case_that_is_planned_twice(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    plan = Plan.read(run / "plan.json")
    plan.model_copy(update={"cases": [*plan.cases, plan.cases[0]]}).write(run / "plan.json")
    assert "a case twice" in str(verify(run, require=Trust.UNSIGNED).broken)


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(sealed: Path) -> None:
    """Between the listing and the hash."""
    (sealed / "report.html").unlink(missing_ok=True)
    os.mkfifo(sealed / "report.html")
    with pytest.raises(VerificationFailed, match="is a pipe or a device"):
        files.sha256(sealed, "report.html")
