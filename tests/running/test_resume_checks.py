"""A run goes on only with what its signer and its machine have measured."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench import conclusion
from nsabench.errors import BegunElsewhere, UsageError, VerificationFailed
from nsabench.evidence.manifest import MANIFEST, verify
from nsabench.evidence.manifest.statement import Trust
from nsabench.machine.environment import identity
from nsabench.model.description import Described
from nsabench.model.plan import Plan
from nsabench.output.report import HTML
from nsabench.running import run
from nsabench.running.log import LogFile
from nsabench.signing import Signer
from nsabench.signing.keys import create, generate, private_pem
from nsabench.signing.signer import KEY_FILE, PASSPHRASE_FILE, RUN_KEY, make_run_key
from tests.cli.conftest import Nsabench
from tests.cli.conftest import nsabench as nsabench
from tests.running.test_resume import ME, Elsewhere, Silent, unfinished
from tests.running.test_resume import asked as asked
from tests.runs import Made, make_run

# Every case is measured and no verdict needs a confirmation: nothing is left but to sign it.
DONE = Made(ratio=lambda _: 0.5)
STRANGER = Signer(Ed25519PrivateKey.generate(), ephemeral=False)


def test_my_key_does_not_sign_what_a_stranger_measured(tmp_path: Path, nsabench: Nsabench) -> None:
    (tmp_path / "pass").write_text("correct horse\n")
    generate(tmp_path / "mine.key", b"correct horse")
    folder = make_run(tmp_path / "run", DONE, signer=STRANGER)
    mine = {KEY_FILE: str(tmp_path / "mine.key"), PASSPHRASE_FILE: str(tmp_path / "pass")}
    done = nsabench("all", "--resume", folder, **mine)
    pinned = nsabench("verify", folder, "--key", tmp_path / "mine.key.pub")
    assert pinned.returncode == 4 and "the run is unsigned" in pinned.stderr
    assert "--resume" not in pinned.stderr
    assert done.returncode == 4, done.stdout
    assert "is signed with the key" in done.stderr and "start a new run" in done.stderr


def test_what_was_begun_in_my_name_is_signed_in_my_name(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", DONE, signer=ME)
    assert "--resume" not in verify(folder, trusted=[STRANGER.keyid]).remedy
    assert "--resume" in verify(folder, trusted=[ME.keyid]).remedy
    conclusion.finish(run.resume(folder, Silent(), signer=ME))
    report = verify(folder, trusted=[ME.keyid], require=Trust.PINNED)
    assert report.broken is None
    assert report.logged is not None and report.logged.origin.keyid == ME.keyid


@pytest.mark.parametrize(
    "name", ["RESULTS.md", "page.html", "logs/notes.log", "shards/x/y", "shards/x/plan.json"]
)
def test_what_somebody_put_there_is_not_signed(tmp_path: Path, name: str) -> None:
    """A foreign file would be signed as part of my run. Files left by a killed process are
    removed."""
    folder = make_run(tmp_path / "run", DONE, signer=ME)
    (folder / "thresholds.tmp").write_text("torn")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("x")
    with pytest.raises(VerificationFailed, match=f"'{name}' is not a file of a run"):
        run.resume(folder, Silent(), signer=ME)
    assert not (folder / MANIFEST).exists() and not (folder / "thresholds.tmp").exists()


def test_a_page_that_somebody_put_there_is_not_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the name of a file of a run, and without the extra `report` nothing replaces it."""
    has_a_chart = replace(DONE, dense_ratio=lambda _: 0.4)
    folder = make_run(tmp_path / "run", has_a_chart, signer=ME)
    (folder / HTML).write_text("a page of a stranger")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    conclusion.finish(run.resume(folder, Silent(), signer=ME))
    assert not (folder / HTML).exists() and verify(folder).broken is None


def test_a_refused_resume_leaves_the_files_of_a_process_that_still_writes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", DONE, signer=ME)
    (folder / "thresholds.tmp").write_text("half of it")
    with closing(LogFile(folder / "log.jsonl")), pytest.raises(UsageError):
        run.resume(folder, Silent(), signer=ME)
    assert (folder / "thresholds.tmp").exists()


def test_a_lasting_key_signs_nothing_that_was_begun_without_it(tmp_path: Path) -> None:
    """The run folder contains its key, so every recipient of the run has it."""
    signer = make_run_key(tmp_path)
    folder = make_run(tmp_path / "run", DONE, signer=signer)
    (tmp_path / RUN_KEY).rename(folder / RUN_KEY)
    assert "--resume" in verify(folder).remedy
    with pytest.raises(VerificationFailed, match="which is not the one named now"):
        run.resume(folder, Silent(), signer=ME)
    conclusion.finish(run.resume(folder, Silent()))
    assert verify(folder).trust is Trust.EPHEMERAL
    assert not (folder / RUN_KEY).exists()
    # As a process leaves it that is killed right after it has signed.
    create((folder / RUN_KEY, private_pem(signer.key), 0o600))
    assert verify(folder).broken is None
    (folder / RUN_KEY).unlink()
    (folder / MANIFEST).unlink()
    with pytest.raises(VerificationFailed, match=r"which is not in .*run\.key"):
        run.resume(folder, Silent())


@pytest.mark.parametrize("line", [0, 1, 5])
def test_an_altered_log_goes_no_further(tmp_path: Path, line: int) -> None:
    folder = make_run(tmp_path / "run", DONE, signer=ME)
    path = folder / "log.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[line] = lines[line].replace(b'"previous":"', b'"previous":"0', 1)
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(VerificationFailed, match=f"line {line + 1}"):
        run.resume(folder, Silent(), signer=ME)


def test_another_description_of_the_machine_goes_no_further(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", DONE, signer=ME)
    path = folder / "environment.json"
    path.write_text(path.read_text().replace("NVIDIA H200", "NVIDIA B300"))
    with pytest.raises(VerificationFailed, match="was changed since the run was begun"):
        run.resume(folder, Silent(), signer=ME)


def test_another_device_of_the_same_name_is_another_machine(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Elsewhere, "gpu", "NVIDIA H200")
    folder = unfinished(tmp_path / "run", 1.5)
    monkeypatch.setattr(identity, "_device_uuid", lambda described: "GPU-of-another-host")
    with pytest.raises(BegunElsewhere, match="another machine, or on another device"):
        run.resume(folder, Silent(), signer=ME)
    assert asked == []


def test_a_run_of_another_machine_is_set_aside_where_its_plan_is_asked_for(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Elsewhere, "gpu", "NVIDIA H200")
    folder = unfinished(tmp_path / "run", 1.5)
    before = Plan.read(folder / "plan.json")
    plan = before.model_copy(update={"run_id": "20260102T000000Z-abc123"})
    monkeypatch.setattr(identity, "_device_uuid", lambda described: "GPU-of-another-host")
    started: list[tuple[str, Path]] = []
    monkeypatch.setattr(
        run, "start", lambda plan, out, *_, **__: started.append((plan.run_id, out))
    )
    with pytest.raises(BegunElsewhere):
        conclusion.resume(folder, Silent(), signer=ME)
    conclusion.resume(folder, Silent(), plan=plan, signer=ME)
    assert started == [(plan.run_id, folder)] and not folder.exists()
    assert Plan.read(tmp_path / f"run.{before.run_id}" / "plan.json") == before


def test_what_is_said_of_a_machine(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    described = Described(software={}, device={"type": "cpu"})
    assert identity.machine_of("run", described, tmp_path) == ""
    (tmp_path / "etc" / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    one = identity.machine_of("run", described, tmp_path)
    assert len(one) == 64 and "0123" not in one
    assert identity.machine_of("another", described, tmp_path) != one
    (tmp_path / "etc" / "machine-id").write_text("")  # as in images of containers
    assert identity.machine_of("run", described, tmp_path) == ""
    (tmp_path / "var" / "lib" / "dbus").mkdir(parents=True)
    (tmp_path / "var/lib/dbus/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    assert identity.machine_of("run", described, tmp_path) == one


def test_a_log_that_was_changed_while_it_was_measured_is_not_signed(tmp_path: Path) -> None:
    """The lines that are left are whole, and the tables are made from what was measured."""
    folder = unfinished(tmp_path / "run", 0.5)
    finished = run.resume(folder, Silent(), signer=ME)
    path = folder / "log.jsonl"
    sealed = path.read_bytes()
    with closing(LogFile(path)) as log:
        log.sign_as(ME)
        log.append(log.log.sessions[0])
    with pytest.raises(VerificationFailed, match="is not what was written there"):
        conclusion.finish(finished)
    assert not (folder / MANIFEST).exists()
    path.write_bytes(sealed)
    conclusion.finish(finished)
    assert verify(folder).broken is None
