"""selection_report.md and `nsabench report`."""

import json
import re
from dataclasses import replace

from nsabench.errors import UsageError
from nsabench.evidence.manifest import seal, verify
from nsabench.model.vocabulary import Status
from nsabench.output.report import Facts, write_html, write_markdown
from nsabench.text import markdown
from tests.commands import invoke
from tests.output.report.conftest import make_run
from tests.runs import SIGNER, Made
from tests.runs import make_run as make_whole_run


def test_it_has_the_sections_of_the_page_in_their_order(run, tmp_path):
    text = write_markdown(Facts.read(run), tmp_path).read_text()
    titles = re.findall(r"^## (.*)", text, re.M)
    titles.remove("selection_rows N256 H4 D64")
    page = write_html(Facts.read(run), tmp_path).read_text()
    on_page = re.findall(r'<span class="name">(.*?)</span>', page)
    # Charts and the table of all records are only on the page.
    assert titles == [title for title in on_page if title not in ("Pays", "Time", "Records")]
    assert "`quick_one` (selection_rows): RIGHT 8 of 8; not decided" in text
    assert "`environment.json` cannot be read" in text


def test_an_invalid_run_says_so_first_and_decides_nothing(invalid_run, tmp_path):
    text = write_markdown(Facts.read(invalid_run), tmp_path).read_text()
    summary = text.partition("## Decision")[2].strip()
    assert summary.startswith("**This run is invalid and decides nothing.**")
    assert "Thresholds and their reasons:\n\nNone: the run is invalid." in text


def test_where_a_check_may_be_broken_its_part_of_the_run_decides_nothing(tmp_path):
    run = make_whole_run(tmp_path / "run", Made(control_crashed=True))
    facts = Facts.read(run)
    summary = write_markdown(facts, tmp_path).read_text().partition("## Failures")[0]
    assert "a part of this run.** no control of selection" in summary
    assert "16 invalid" in summary and "This run is invalid" not in summary
    page = write_html(facts, tmp_path).read_text()
    assert "a part of this run:</strong>" in page


def test_verdicts_with_an_unproven_check_behind_them_say_so(tmp_path):
    facts = Facts.read(make_whole_run(tmp_path / "run"))
    text = write_markdown(facts, tmp_path).read_text()
    lacking = (
        "no control showed that these checks work for selection_rows: timer, baseline, roofline"
    )
    summary = text.partition("## Failures")[0]
    assert f"**Unproven:** {markdown(lacking)}." in summary
    assert "; 16 rest on an unproven check" in summary
    assert "faster\\* |" in text and "see `unproven`" in text.replace("\\", "")
    page = write_html(facts, tmp_path).read_text()
    decision = page[page.index('class="answer"') : page.index('id="failed"')]
    assert "16 rest on an unproven check" in decision
    assert lacking in decision.partition("Not every check behind these verdicts was shown")[2]


def test_a_failure_has_the_diagnosis_that_the_page_has(tmp_path):
    facts = Facts.read(make_whole_run(tmp_path / "run", Made(status=lambda n: Status.WRONG)))
    records = [replace(r, diagnosis="the scale is not used") for r in facts.records]
    facts = replace(facts, results=replace(facts.results, records=records))
    failures = write_markdown(facts, tmp_path).read_text().partition("## Failures")[2]
    assert "the scale is not used" in failures.partition("\n## ")[0]


def test_an_interrupted_run_says_so(tmp_path):
    run = make_run(tmp_path / "run")
    log = (run / "log.jsonl").read_text()
    cut = log.index('"begun"', log.rindex('"begun"', 0, log.rindex('"begun"')))
    (run / "log.jsonl").write_text(log[: log.rindex("\n", 0, cut) + 1])
    text = write_markdown(Facts.read(run), tmp_path).read_text()
    assert "**This run is incomplete:** 2 of 8 planned cases were not measured." in text


def test_the_command_writes_both(run, tmp_path):
    done = invoke("report", run, "--out", tmp_path, "--json")
    assert json.loads(done.stdout)["valid"] is True
    assert (tmp_path / "report.html").is_file() and (tmp_path / "selection_report.md").is_file()


def test_a_signed_folder_is_left_as_it_was_signed(tmp_path):
    signed = make_whole_run(tmp_path / "signed")
    seal(signed, SIGNER)
    before = sorted(path.name for path in signed.iterdir())
    (tmp_path / "link").symlink_to(signed)
    for out in (None, signed, signed / "logs", signed / "new", tmp_path / "link"):
        done = invoke("report", signed, *(("--out", out) if out else ()))
        assert isinstance(done.error, UsageError), out
        assert sorted(path.name for path in signed.iterdir()) == before
    assert verify(signed).broken is None


def test_what_an_implementation_printed_is_its_own_pass_by_pass(tmp_path):
    folder = make_whole_run(tmp_path / "run")
    facts = Facts.read(folder)
    case_id = facts.plan.cases[0].id
    text = "=== mine, other\nboth\n=== mine\nTraceback\n=== other\nnothing of mine\n"
    (folder / "logs" / f"{case_id}.log").write_text(text)
    (folder / "logs" / f"{case_id}.confirmation.log").write_text("a last word\n")
    later = ["--- confirmation", "a last word"]
    assert facts.log(case_id, "mine").splitlines() == ["both", "Traceback", *later]
    assert facts.log(case_id, "other").splitlines() == ["both", "nothing of mine", *later]


def test_a_summary_fits_a_pull_request(tmp_path):
    names = tuple(f"kernel_{n}" for n in range(20))
    run = make_whole_run(tmp_path / "run", Made(implementations=names))
    done = invoke("report", run, "--markdown")
    lines = done.stdout.splitlines()
    assert len(lines) <= 60
    assert "`kernel_0` (selection_rows): RIGHT 16 of 16" in done.stdout
    assert not (run / "report.html").exists(), "it only prints"
