"""A run decides for the margin that it was made for; what was decided for another is said to be."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from nsabench.output import report, terminal
from nsabench.output.report import Facts
from nsabench.running.folder import RunFolder
from nsabench.running.run import Finished
from nsabench.verdicts import threshold
from tests.runs import Made, make_run

OTHERWISE = "it says for the margin 1.05, mine (selection_rows) from 256 on"


def test_what_was_decided_for_another_margin_is_said(tmp_path: Path) -> None:
    made = Made(ratio=lambda length: 0.5 if length < 256 else 1.055, noise=0.002)
    folder = make_run(tmp_path / "run", made)
    decisions = threshold.decide_all([threshold.of_run(folder)], 1.05)
    threshold.write(decisions, folder / "thresholds.yaml")
    facts = Facts.read(folder)
    console = Console(file=io.StringIO(), width=400, record=True)
    finished = Finished(RunFolder(folder), facts.plan, facts.results, 1.0, 1.0)
    terminal.print_summary(finished, console)
    assert OTHERWISE in console.export_text()
    for write in (report.write_html, report.write_markdown):
        assert OTHERWISE in write(facts, tmp_path).read_text()


def test_the_margin_of_the_run_is_what_the_reports_speak_of(tmp_path: Path) -> None:
    facts = Facts.read(make_run(tmp_path / "run", Made(margin=1.05)))
    text = report.write_markdown(facts, tmp_path).read_text()
    assert "≥ 1.05×" in text and "≥ 1.2×" not in text
    assert "≥ 1.05×" in report.write_html(facts, tmp_path).read_text()
