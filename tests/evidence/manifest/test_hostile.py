"""Runs that try to hang or crash their verifier are refused with a sentence."""

import os
from datetime import date

import pytest

from nsabench import limits
from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest import files, seal, verify
from nsabench.evidence.manifest.keys import Revocation, Why
from nsabench.evidence.manifest.statement import Trust
from nsabench.model.plan import Plan
from tests.evidence.manifest.test_tamper import resign
from tests.runs import make_run

LOG = "0123456789ab.log"


@pytest.mark.parametrize(
    "when", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "1677-01-01T00:00:00Z"]
)
@pytest.mark.parametrize("which", ["signed", "created"])
def test_a_time_that_no_calendar_holds(run, signer, which, when):
    """Python cannot convert the first two to UTC. With a list of revoked keys, `verify` compares
    the time."""

    def change(statement):
        predicate = statement["predicate"]
        (predicate if which == "signed" else predicate["plan"])[which] = when

    resign(run, change, signer)
    revoked = {signer.keyid: Revocation(date(2027, 1, 1), Why.SUPERSEDED)}
    broken = verify(run, revoked=revoked).broken
    assert broken is not None and "from this year" in broken


def test_a_time_without_a_zone_is_one(run, signer):
    resign(run, lambda s: s["predicate"].update(signed="2026-12-31T23:59:59"), signer)
    assert verify(run, revoked={}).broken is None
    superseded = {signer.keyid: Revocation(date(2027, 1, 1), Why.SUPERSEDED)}
    assert verify(run, revoked=superseded).broken is None
    superseded = {signer.keyid: Revocation(date(2026, 12, 31), Why.SUPERSEDED)}
    assert "superseded since" in str(verify(run, revoked=superseded).broken)


@pytest.mark.parametrize("named", [True, False], ids=["signed", "added"])
def test_a_file_of_a_terabyte_is_not_hashed(run, signer, monkeypatch, named):
    """The sparse file takes no space on the disk or in a tar archive."""
    (run / "logs" / LOG).write_bytes(b"")
    if named:
        seal(run, signer)
    os.truncate(run / "logs" / LOG, 1 << 40)
    hashed = []
    monkeypatch.setattr(files, "sha256", lambda folder, name: hashed.append(name))
    assert verify(run).broken == "folder: logs/0123456789ab.log has more than 1 GiB"
    assert hashed == []


def test_many_large_files(run):
    for i in range(5):
        (run / "logs" / f"{i:012}.log").write_bytes(b"")
        os.truncate(run / "logs" / f"{i:012}.log", limits.FILE)
    broken = str(verify(run).broken)
    assert broken == "folder: the folder has more than 100000 files or 4 GiB"


def test_a_log_of_very_many_lines(tmp_path, monkeypatch):
    """Each line has a seal to check. For a GiB of lines, that would take minutes."""
    run = make_run(tmp_path / "run")
    monkeypatch.setattr(limits, "LOG_LINES", 5)
    broken = verify(run, require=Trust.UNSIGNED).broken or ""
    assert broken.startswith("log: log.jsonl: ") and broken.endswith("has more than 5 lines")


def test_a_case_that_is_planned_twice(tmp_path):
    run = make_run(tmp_path / "run")
    plan = Plan.read(run / "plan.json")
    plan.model_copy(update={"cases": [*plan.cases, plan.cases[0]]}).write(run / "plan.json")
    assert "a case twice" in str(verify(run, require=Trust.UNSIGNED).broken)


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(run):
    """It can take the place after the files were listed and before they are hashed."""
    (run / "report.html").unlink(missing_ok=True)
    os.mkfifo(run / "report.html")
    with pytest.raises(VerificationFailed, match="is a pipe or a device"):
        files.sha256(run, "report.html")
