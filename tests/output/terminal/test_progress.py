"""The terminal: a line for each case, and a line redrawn only between timed regions."""

import io
import re

import pytest
from rich.console import Console

from nsabench.channel import Step
from nsabench.model.vocabulary import Purpose
from nsabench.output import terminal
from nsabench.running.folder import RunFolder
from nsabench.verdicts.attempts import states_of
from tests.output.report.conftest import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    [part] = RunFolder(make_run(tmp_path_factory.mktemp("progress") / "run")).parts()
    return part


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


def play(run, *, on_terminal, width=120):
    plan, session = run.plan, run.log.sessions[0]
    states = states_of(plan, run.log, Purpose.MAIN)
    file = io.StringIO()
    console = Console(file=file, force_terminal=on_terminal, width=width, height=50)
    with terminal.Progress(console) as progress:
        assert progress._live is None or progress._live.auto_refresh is False
        progress.run_started(plan, session.described, session.ceilings)
        for number, planned in enumerate(plan.cases, 1):
            progress.case_started(planned, number, len(plan.cases))
            progress.step(Step(phase="warm up", implementation="quick_one"))
            progress.case_finished(planned, states[planned.id])
    return file.getvalue()


def test_a_terminal_says_what_runs_now(run):
    text = play(run, on_terminal=True)
    for words in ("warm up quick_one", "━─", " 7 of 8, ", "s left", "[8/8]", "1 crashed, 3 ok"):
        assert words in text


def test_the_bar_leaves_the_last_column_of_a_terminal_free(run):
    drawn = re.split(r"\x1b\[[\d;?]*\w|[\r\n]", play(run, on_terminal=True, width=60))
    bars = [part for part in drawn if " of 8" in part]
    assert max(map(len, bars)) == 59


@pytest.mark.parametrize("variable", ["CI", "NO_COLOR"])
def test_ci_and_no_color_get_plain_lines(run, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    text = play(run, on_terminal=True)
    assert "warm up" not in text
    assert "\x1b[2K" not in text, "a line was redrawn"


def test_no_terminal_gets_a_line_a_case(run):
    text = play(run, on_terminal=False).replace("\n ", " ")
    lines = [line for line in text.splitlines() if line.startswith("[")]
    assert len(lines) == 8
    counts = "[2/8] selection_rows N256 H4 D64 L128 fp16: 1 crashed, 3 ok, controls: 1 "
    assert lines[1].startswith(f"{counts}(0.")
