"""Runs that attack their reader, or a page or script made of them."""

import ast

import pytest

from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest import seal
from nsabench.evidence.manifest.statement import Trust
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Catch, Role, Status
from nsabench.output import templates
from nsabench.output.site.build import SiteRun, index, page
from tests.commands import invoke
from tests.output.report.conftest import HOSTILE
from tests.output.report.conftest import browser as browser
from tests.runs import SIGNER, Made, make_run
from tests.verdicts.test_break_even import made


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", Made())


@pytest.mark.parametrize("command", ["report", "threshold", "profile"])
def test_a_link_in_a_run_is_not_followed(run, tmp_path, command):
    secret = tmp_path / "secret"
    secret.write_text("what is not the run's")
    case_id = Plan.read(run / "plan.json").cases[0].id
    (run / "logs" / f"{case_id}.log").unlink()
    (run / "logs" / f"{case_id}.log").symlink_to(secret)
    more = {
        "report": ("--out", tmp_path / "out"),
        "profile": (case_id, "mine", tmp_path / "alone.py"),
    }
    done = invoke(command, run, *more.get(command, ()))
    assert isinstance(done.error, VerificationFailed)
    assert "is a link, and a run holds none" in str(done.error)
    made = [path for path in tmp_path.rglob("*") if path.is_file() and run not in path.parents]
    assert made == [secret]


def test_what_a_kernel_says_is_text_on_every_page_of_a_site(tmp_path, browser):
    ours = [
        made(64, HOSTILE, Role.CANDIDATE, status=Status.CRASHED, reason=HOSTILE, gpu_name=HOSTILE),
        made(64, "zeros", Role.CONTROL, caught=Catch.MISSED),
    ]
    run = SiteRun("20260401T000000Z-dddddd", "2026-04-01 00:00", Trust.UNPINNED, HOSTILE, ours, [])
    for name, text in (
        ("index.html", index([run])),
        ("page.html", page(run)),
    ):
        (tmp_path / name).write_text(text)
        assert "<script>window.hacked" not in text and "<img src=x" not in text
        browser.open(tmp_path / name)
        assert browser.js("return window.hacked") is None and browser.errors() == []
        assert "onerror=window.hacked=1" in browser.js("return document.body.textContent")


def test_no_name_of_a_plan_is_code_in_a_script(run):
    plan = Plan.read(run / "plan.json")
    evil = 'x\nimport socket; socket.socket()  # """ \' {name}'
    info = plan.info("selection_rows", "mine").model_copy(update={"name": evil, "op": evil})
    case = plan.cases[0].case.model_copy(update={"distribution": evil})
    tree = ast.parse(templates.reproduction(plan.model_copy(update={"kernels": evil}), case, info))
    imported = [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    assert "socket" not in imported


def test_a_script_replaces_nothing(run, tmp_path):
    plan = Plan.read(run / "plan.json")
    (tmp_path / "mine.py").write_text("my kernel")
    (tmp_path / "other.pt").write_text("my weights")

    def asked(script):
        done = invoke("profile", run, plan.cases[0].id, "mine", script)
        assert isinstance(done.error, UsageError)
        return str(done.error)

    assert "mine.py is there already" in asked(tmp_path / "mine.py")
    assert "other.pt is there already" in asked(tmp_path / "other.py")
    seal(run, SIGNER)
    assert "files are signed" in asked(run / "alone.py")
    assert (tmp_path / "mine.py").read_text() == "my kernel"
