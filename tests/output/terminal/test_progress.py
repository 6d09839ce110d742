"""The terminal: a live table, redrawn only between timed regions; plain lines elsewhere."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from rich.console import Console

from nsabench.execution import journal
from nsabench.execution.protocol import Step
from nsabench.model.plan import Plan
from nsabench.output import terminal
from nsabench.output.terminal.progress_table import LiveTable
from tests.output.report.conftest import make_run


@pytest.fixture
def shown(tmp_path: Path) -> tuple[Plan, journal.Contents]:
    run = make_run(tmp_path / "run")
    return Plan.read(run / "plan.json"), journal.read(run / "journal.jsonl")


def play(console: Console, shown: tuple[Plan, journal.Contents]) -> None:
    plan, contents = shown
    header = contents.headers[0]
    with terminal.Progress(console) as progress:
        progress.run_started(plan, header.described, header.ceilings)
        for number, planned in enumerate(plan.cases, 1):
            progress.case_started(planned, number, len(plan.cases))
            progress.step(Step(phase="warm up", implementation="quick_one"))
            progress.case_finished(planned, contents.entries[number - 1])


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=120, height=50), file


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_terminal_gets_a_live_table(shown: tuple[Plan, journal.Contents]) -> None:
    to, file = console(terminal=True)
    play(to, shown)
    text = file.getvalue()
    for word in (
        "ratio, unchecked",
        "nasty_one",
        "crashed",
        "warm up quick_one",
        "s left",
        "[8/8]",
    ):
        assert word in text


def test_an_interrupt_leaves_the_table(shown: tuple[Plan, journal.Contents]) -> None:
    left = {}
    for error in (None, KeyboardInterrupt):
        to, file = console(terminal=True)
        plan, contents = shown
        progress = terminal.Progress(to)
        with contextlib.suppress(KeyboardInterrupt), progress:
            progress.run_started(plan, contents.headers[0].described, contents.headers[0].ceilings)
            progress.case_started(plan.cases[0], 1, 8)
            progress.case_finished(plan.cases[0], contents.entries[0])
            drawn = len(file.getvalue())
            if error is not None:
                raise error
        left[error] = "nasty_one" in file.getvalue()[drawn:]
    assert left == {None: False, KeyboardInterrupt: True}


@pytest.mark.parametrize("variable", ["CI", "NO_COLOR"])
def test_ci_and_no_color_get_plain_lines(
    shown: tuple[Plan, journal.Contents], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    to, file = console(terminal=True)
    play(to, shown)
    assert "warm up" not in file.getvalue()
    assert "\x1b[2K" not in file.getvalue(), "a line was redrawn"


def test_no_terminal_gets_a_line_a_case(shown: tuple[Plan, journal.Contents]) -> None:
    to, file = console(terminal=False)
    play(to, shown)
    lines = [line for line in file.getvalue().splitlines() if line.startswith("[")]
    assert len(lines) == 8
    assert lines[1].startswith(
        "[2/8] selection_rows N256 H4 D64 L128 fp16: 1 crashed, 3 ok, controls: 1 ("
    )


def test_nothing_is_redrawn_while_nothing_is_said(
    shown: tuple[Plan, journal.Contents], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker sends no step while it times, so drawing must hang on steps alone."""
    to, _ = console(terminal=True)
    progress = terminal.Progress(to)
    assert progress._live is not None
    assert progress._live.auto_refresh is False


def test_the_ratio_is_to_the_fastest_baseline(shown: tuple[Plan, journal.Contents]) -> None:
    plan, contents = shown
    table = LiveTable()
    table.roles = {(i.op, i.name): i.role for i in plan.implementations}
    table.add(plan.cases[3], contents.entries[3])
    (_, quick, _, time, ratio), (_, nasty, status, none, _) = table._lines
    assert (quick, nasty, status, none) == ("quick_one", "nasty_one", "crashed", None)
    assert time is not None and ratio == pytest.approx(1.234, abs=0.01)
