"""A run is resumed only on its own machine, with its signer's measurements, and without files that
an attacker put there."""

import os
import sys
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench import conclusion
from nsabench.cli import group
from nsabench.errors import (
    BegunElsewhere,
    EnvironmentRefused,
    NsabenchError,
    UsageError,
    VerificationFailed,
)
from nsabench.evidence.manifest import MANIFEST, verify
from nsabench.evidence.manifest.statement import Trust
from nsabench.machine.environment import identity
from nsabench.model.description import Described
from nsabench.model.measurement import Ceilings
from nsabench.model.plan import Plan
from nsabench.model.source import Source
from nsabench.model.vocabulary import Purpose
from nsabench.output import report
from nsabench.output.report import HTML
from nsabench.running import run
from nsabench.running.log import LogFile, read
from nsabench.running.process import Printed
from nsabench.signing import Signer
from nsabench.signing.keys import create, generate, private_pem
from nsabench.signing.signer import KEY_FILE, PASSPHRASE_FILE, RUN_KEY, make_run_key
from nsabench.sources import sha256
from nsabench.worker.protocol import Measured
from tests.cli.conftest import nsabench as nsabench
from tests.runs import Made, from_sources, make_run, timed

ONE = Made(lengths=(64,), shapes=((256, 4, 64),))


ME = Signer(Ed25519PrivateKey.generate(), ephemeral=False)


class Elsewhere:
    """An executor and its worker on another machine."""

    gpu = "NVIDIA GeForce RTX 4090"
    asked: list[str]

    is_clean = False
    log = Printed()

    def __init__(self, plan, worker, checker):
        self.worker = self

    def describe(self):
        return Described(
            software={"torch": ONE.torch, "triton": ONE.triton}, device={"name": self.gpu}
        )

    def measure_ceilings(self):
        return Ceilings()

    def run(self, job):
        self.asked.append(job.case.id)
        rng = np.random.default_rng(1)
        return Measured(observations=[timed(n, 0.2, ONE, rng) for n in job.implementations])

    def close(self): ...


class Silent:
    def __getattr__(self, name):
        return lambda *given: None


@pytest.fixture
def asked(monkeypatch):
    made = []
    monkeypatch.setattr(Elsewhere, "asked", made, raising=False)
    monkeypatch.setattr("nsabench.running.loop.Executor", Elsewhere)
    return made


def unfinished(folder, ratio):
    """Make a run whose main pass on an H200 is complete. Its baseline has a source of its own."""
    made = Made(lengths=ONE.lengths, shapes=ONE.shapes, ratio=lambda _: ratio)
    return make_run(folder, made, signer=ME, change=from_sources)


@pytest.mark.parametrize(("ratio", "what"), [(1.2, "confirmation"), (1.5, "apart")])
def test_what_is_still_to_measure_is_not_measured_on_another_machine(tmp_path, asked, ratio, what):
    folder = unfinished(tmp_path / "run", ratio)
    with pytest.raises(UsageError, match="begun on device NVIDIA H200 and cannot go on with"):
        run.resume(folder, Silent(), signer=ME)
    assert asked == [], what
    log = read(folder / "log.jsonl")
    assert {attempt.job.purpose for attempt in log.attempts} == {Purpose.MAIN}
    assert len(log.sessions) == 1


def test_on_the_same_machine_it_goes_on(tmp_path, asked, monkeypatch):
    monkeypatch.setattr(Elsewhere, "gpu", ONE.gpu)
    folder = unfinished(tmp_path / "run", 1.5)
    run.resume(folder, Silent(), signer=ME)
    log = read(folder / "log.jsonl")
    made = {
        purpose: [a.job.case.id for a in log.attempts if a.job.purpose is purpose]
        for purpose in Purpose
    }
    assert made[Purpose.ISOLATED] == asked == made[Purpose.MAIN]
    assert len(log.sessions) == 2


def test_nothing_left_to_measure_asks_no_machine(tmp_path, asked):
    run.resume(unfinished(tmp_path / "run", 0.5), Silent(), signer=ME)
    assert asked == []


def test_the_environment_is_what_the_machine_was_before_it_was_calibrated(
    tmp_path, asked, monkeypatch
):
    """Calibration loads the device, so afterwards the device looks as if another program kept it
    busy."""
    plan = Plan.read(unfinished(tmp_path / "before", 1.5) / "plan.json")
    folder = tmp_path / "run"
    seen = []

    def measure_ceilings(executor):
        seen.append((folder / "environment.json").exists())
        raise EnvironmentRefused("enough was seen")

    monkeypatch.setattr(Elsewhere, "measure_ceilings", measure_ceilings, raising=False)
    with pytest.raises(EnvironmentRefused, match="enough was seen"):
        run.start(plan, folder, Silent(), signer=ME)
    assert seen == [True]


def test_a_machine_that_is_unfit_is_not_measured_on(tmp_path, asked, monkeypatch):
    plan = Plan.read(unfinished(tmp_path / "before", 1.5) / "plan.json")
    folder = tmp_path / "run"
    with pytest.raises(EnvironmentRefused, match=r"torch 2\.11\.0 was built without CUDA"):
        run.start(plan, folder, Silent(), signer=ME, fit=True)
    assert not folder.exists()
    run.start(plan, folder, Silent(), signer=ME, fit=False)
    assert asked


@pytest.mark.parametrize(("name", "fit"), [("all", True), ("run", False)])
def test_all_looks_at_the_machine_first_and_run_does_not(monkeypatch, name, fit):
    seen = []

    def start(plan, out, view, *, fit, **others):
        seen.append(fit)
        raise EnvironmentRefused("enough was seen")

    monkeypatch.setattr(run, "start", start)
    CliRunner().invoke(group, [name, "quick", "--device", "cpu"])
    assert seen == [fit]


# Every case is measured and no verdict needs a confirmation. Only the signature is missing.
DONE = Made(ratio=lambda _: 0.5)
STRANGER = Signer(Ed25519PrivateKey.generate(), ephemeral=False)


def test_my_key_does_not_sign_what_a_stranger_measured(tmp_path, nsabench):
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


def test_what_was_begun_in_my_name_is_signed_in_my_name(tmp_path):
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
def test_what_somebody_put_there_is_not_signed(tmp_path, name):
    """A foreign file would be signed as part of my run. Files left by a killed process are
    removed."""
    folder = make_run(tmp_path / "run", DONE, signer=ME)
    (folder / "thresholds.tmp").write_text("torn")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("x")
    with pytest.raises(VerificationFailed, match=f"'{name}' is not a file of a run"):
        run.resume(folder, Silent(), signer=ME)
    assert not (folder / MANIFEST).exists() and not (folder / "thresholds.tmp").exists()


def test_a_page_that_somebody_put_there_is_not_signed(tmp_path, monkeypatch):
    """The page has the name of a run's file. Without the extra `report`, nothing replaces it."""
    has_a_chart = replace(DONE, dense_ratio=lambda _: 0.4)
    folder = make_run(tmp_path / "run", has_a_chart, signer=ME)
    (folder / HTML).write_text("a page of a stranger")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    conclusion.finish(run.resume(folder, Silent(), signer=ME))
    assert not (folder / HTML).exists() and verify(folder).broken is None


def test_a_refused_resume_leaves_the_files_of_a_process_that_still_writes(tmp_path):
    folder = make_run(tmp_path / "run", DONE, signer=ME)
    (folder / "thresholds.tmp").write_text("half of it")
    with closing(LogFile(folder / "log.jsonl")), pytest.raises(UsageError):
        run.resume(folder, Silent(), signer=ME)
    assert (folder / "thresholds.tmp").exists()


def test_a_lasting_key_signs_nothing_that_was_begun_without_it(tmp_path):
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
    # A process that is killed right after it signed leaves the key.
    create((folder / RUN_KEY, private_pem(signer.key), 0o600))
    assert verify(folder).broken is None
    (folder / RUN_KEY).unlink()
    (folder / MANIFEST).unlink()
    with pytest.raises(VerificationFailed, match=r"which is not in .*run\.key"):
        run.resume(folder, Silent())


@pytest.mark.parametrize("line", [0, 1, 5])
def test_an_altered_log_goes_no_further(tmp_path, line):
    folder = make_run(tmp_path / "run", DONE, signer=ME)
    path = folder / "log.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[line] = lines[line].replace(b'"previous":"', b'"previous":"0', 1)
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(VerificationFailed, match=f"line {line + 1}"):
        run.resume(folder, Silent(), signer=ME)


def test_another_description_of_the_machine_goes_no_further(tmp_path):
    folder = make_run(tmp_path / "run", DONE, signer=ME)
    path = folder / "environment.json"
    path.write_text(path.read_text().replace("NVIDIA H200", "NVIDIA B300"))
    with pytest.raises(VerificationFailed, match="was changed since the run was begun"):
        run.resume(folder, Silent(), signer=ME)


def test_another_device_of_the_same_name_is_another_machine(tmp_path, asked, monkeypatch):
    monkeypatch.setattr(Elsewhere, "gpu", "NVIDIA H200")
    folder = unfinished(tmp_path / "run", 1.5)
    monkeypatch.setattr(identity, "_device_uuid", lambda described: "GPU-of-another-host")
    with pytest.raises(BegunElsewhere, match="another machine, or on another device"):
        run.resume(folder, Silent(), signer=ME)
    assert asked == []


def test_a_run_of_another_machine_is_set_aside_where_its_plan_is_asked_for(
    tmp_path, asked, monkeypatch
):
    monkeypatch.setattr(Elsewhere, "gpu", "NVIDIA H200")
    folder = unfinished(tmp_path / "run", 1.5)
    before = Plan.read(folder / "plan.json")
    plan = before.model_copy(update={"run_id": "20260102T000000Z-abc123"})
    monkeypatch.setattr(identity, "_device_uuid", lambda described: "GPU-of-another-host")
    started = []
    monkeypatch.setattr(
        run, "start", lambda plan, out, *_, **__: started.append((plan.run_id, out))
    )
    with pytest.raises(BegunElsewhere):
        conclusion.reopen(folder, Silent(), signer=ME)
    conclusion.reopen(folder, Silent(), plan=plan, signer=ME)
    assert started == [(plan.run_id, folder)] and not folder.exists()
    assert Plan.read(tmp_path / f"run.{before.run_id}" / "plan.json") == before


def test_what_is_said_of_a_machine(tmp_path):
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


def test_a_log_that_was_changed_while_it_was_measured_is_not_signed(tmp_path):
    """The changed log is valid, but the tables are made from what was measured."""
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


SECRET = b"a token without a line end"


@pytest.fixture
def mine(tmp_path):
    """Return a file of the reader's that belongs to no run."""
    path = tmp_path / "token"
    path.write_bytes(SECRET)
    return path


def test_a_log_that_is_a_link_is_not_cut(tmp_path, mine):
    """Otherwise the linked file would be cut, as if all of it were a torn last line."""
    folder = make_run(tmp_path / "run", DONE, signer=ME)
    (folder / "log.jsonl").unlink()
    (folder / "log.jsonl").symlink_to(mine)
    for go_on in (
        lambda: conclusion.reopen(folder, Silent(), signer=ME),
        lambda: LogFile(folder / "log.jsonl"),
    ):
        with pytest.raises(NsabenchError, match="is a link"):
            go_on()
        assert mine.read_bytes() == SECRET


def test_a_log_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "log.jsonl")
    with pytest.raises(UsageError, match="a pipe or a device"):
        LogFile(tmp_path / "log.jsonl")


@pytest.mark.parametrize("name", ["logs", "report.tmp", "logs/x.log", "aside"])
def test_nobody_goes_on_with_a_folder_that_holds_a_link(tmp_path, mine, name):
    folder = make_run(tmp_path / "run", DONE, signer=ME)
    link = folder / name
    (folder / "logs").mkdir(exist_ok=True)
    if link.is_dir():
        link.rename(tmp_path / "logs_before")
    link.symlink_to(tmp_path if name == "logs" else mine)
    with pytest.raises(VerificationFailed, match=f"{name} is a link, and a run holds none"):
        conclusion.reopen(folder, Silent(), signer=ME)
    assert mine.read_bytes() == SECRET


def test_what_is_written_into_a_run_follows_no_link(tmp_path, mine):
    """A file is first written under another name, which a stranger may have made a link."""
    folder = make_run(tmp_path / "run", Made())
    (folder / "report.tmp").symlink_to(mine)
    page = report.write_html(report.Facts.read(folder), folder)
    assert mine.read_bytes() == SECRET
    assert not page.is_symlink() and page.stat().st_size


EVIL = "from pathlib import Path\nPath({!r}).write_text('executed')\n"


@pytest.mark.parametrize("measured", ["nothing", "by a stranger"])
def test_no_file_that_a_strangers_plan_names_is_executed(tmp_path, measured):
    """Resuming loads the op's file, but only after the plan proves to be the reader's own."""
    code = EVIL.format(str(tmp_path / "trace"))
    op = tmp_path / "op.py"
    op.write_text(code)
    digest = sha256(code.encode())

    folder = make_run(tmp_path / "run", DONE, signer=STRANGER)
    plan = Plan.read(folder / "plan.json")
    sources = {**plan.sources, Source.from_digest(op, digest): digest}
    named = {"ops": str(op), "ops_sha256": digest, "sources": sources}
    plan = plan.model_copy(update=named)
    plan.write(folder / "plan.json")
    session = read(folder / "log.jsonl").sessions[0]
    (folder / "log.jsonl").write_bytes(b"")
    if measured == "by a stranger":
        with closing(LogFile(folder / "log.jsonl")) as log:
            log.sign_as(STRANGER)
            log.append(session.model_copy(update={"plan_sha256": plan.sha256}))
    with pytest.raises(NsabenchError, match=r"log\.jsonl") as refused:
        conclusion.reopen(folder, Silent(), signer=ME)
    assert "start" in refused.value.remedy
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("signer", [ME, None], ids=["lasting", "ephemeral"])
def test_a_plan_of_which_nothing_is_measured_is_nobodys(tmp_path, signer):
    """The author of a plan chose its cases, matrices and versions. No measurement confirms them."""
    folder = make_run(tmp_path / "run", DONE, signer=STRANGER)
    (folder / "log.jsonl").unlink()
    with pytest.raises(UsageError, match="is empty"):
        run.resume(folder, Silent(), signer=signer)


def test_a_session_alone_says_whose_plan_it_is(tmp_path):
    folder = make_run(tmp_path / "run", DONE, signer=STRANGER)
    path = folder / "log.jsonl"
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")
    with pytest.raises(VerificationFailed, match="is signed with the key"):
        run.resume(folder, Silent(), signer=ME)
