"""A run folder, changed by an attacker so that resuming or reporting it would reach files outside
it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from nsabench import conclusion
from nsabench.errors import NsabenchError, UsageError, VerificationFailed
from nsabench.files import whole
from nsabench.model.plan import Plan
from nsabench.model.source import Source
from nsabench.output import report
from nsabench.running import run
from nsabench.running.log import LogFile, read
from nsabench.sources import sha256
from tests.running.test_resume import ME, Silent
from tests.running.test_resume_checks import DONE, STRANGER
from tests.runs import Made, make_run

SECRET = b"a token without a line end"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file of the reader's, that no run concerns."""
    path = tmp_path / "token"
    path.write_bytes(SECRET)
    return path


def test_a_log_that_is_a_link_is_not_cut(tmp_path: Path, mine: Path) -> None:
    """All of what it leads to would be a torn last line."""
    folder = make_run(tmp_path / "run", DONE, signer=ME)
    (folder / "log.jsonl").unlink()
    (folder / "log.jsonl").symlink_to(mine)
    for go_on in (
        lambda: conclusion.resume(folder, Silent(), signer=ME),
        lambda: LogFile(folder / "log.jsonl"),
    ):
        with pytest.raises(NsabenchError, match="is a link"):
            go_on()
        assert mine.read_bytes() == SECRET


def test_a_log_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.jsonl")
    with pytest.raises(UsageError, match="a pipe or a device"):
        LogFile(tmp_path / "log.jsonl")


@pytest.mark.parametrize("name", ["logs", "report.tmp", "logs/x.log", "aside"])
def test_nobody_goes_on_with_a_folder_that_holds_a_link(
    tmp_path: Path, mine: Path, name: str
) -> None:
    folder = make_run(tmp_path / "run", DONE, signer=ME)
    link = folder / name
    (folder / "logs").mkdir(exist_ok=True)
    if link.is_dir():
        link.rename(tmp_path / "logs_before")
    link.symlink_to(tmp_path if name == "logs" else mine)
    with pytest.raises(VerificationFailed, match=f"{name} is a link, and a run holds none"):
        conclusion.resume(folder, Silent(), signer=ME)
    assert mine.read_bytes() == SECRET


def write_page(folder: Path) -> None:
    report.write_html(report.Facts.read(folder), folder)


def write_text(folder: Path) -> None:
    report.write_markdown(report.Facts.read(folder), folder)


def write_thresholds(folder: Path) -> None:
    whole(folder / "thresholds.yaml", b"{}")


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_page, "report"),
        (write_text, "selection_report"),
        (write_thresholds, "thresholds"),
    ],
    ids=["page", "text", "thresholds"],
)
def test_what_is_written_into_a_run_follows_no_link(
    tmp_path: Path, mine: Path, write: Callable[[Path], None], name: str
) -> None:
    """Files are filled under another name first, which a stranger may have made a link of."""
    folder = make_run(tmp_path / "run", Made())
    (folder / f"{name}.tmp").symlink_to(mine)
    write(folder)
    assert mine.read_bytes() == SECRET
    [written] = folder.glob(f"{name}.[hmy]*")
    assert not written.is_symlink() and written.stat().st_size


EVIL = "from pathlib import Path\nPath({!r}).write_text('executed')\n"


@pytest.mark.parametrize("measured", ["nothing", "by a stranger"])
def test_no_file_that_a_strangers_plan_names_is_executed(tmp_path: Path, measured: str) -> None:
    """Resuming loads the file of the op: not before the plan is one of the reader's own."""
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
        conclusion.resume(folder, Silent(), signer=ME)
    assert "start" in refused.value.remedy
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("signer", [ME, None], ids=["lasting", "ephemeral"])
def test_a_plan_of_which_nothing_is_measured_is_nobodys(tmp_path: Path, signer: object) -> None:
    """Its author alone chose its cases, matrices and versions, so no measurement confirms them."""
    folder = make_run(tmp_path / "run", DONE, signer=STRANGER)
    (folder / "log.jsonl").unlink()
    with pytest.raises(UsageError, match="is empty"):
        run.resume(folder, Silent(), signer=signer)  # type: ignore[arg-type]


def test_a_session_alone_says_whose_plan_it_is(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", DONE, signer=STRANGER)
    path = folder / "log.jsonl"
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")
    with pytest.raises(VerificationFailed, match="is signed with the key"):
        run.resume(folder, Silent(), signer=ME)
