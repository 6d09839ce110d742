"""What a person reads at the end of a run: little, their own last, and then the answer."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Kind, Regime, Status
from nsabench.output import terminal
from nsabench.output.report import Facts
from nsabench.running.run import Finished
from nsabench.verdicts import threshold
from tests.runs import Made, make_run
from tests.verdicts.test_break_even import ladder

MINE = "mine.py@aaaaaaaaaaaa"


def own(name: str) -> object:
    """Of the candidates, this one is of the user's file."""

    def change(plan: Plan) -> Plan:
        infos = [
            i.model_copy(update={"source": type(i.source)(MINE)}) if i.name == name else i
            for i in plan.implementations
        ]
        return plan.model_copy(update={"implementations": infos})

    return change


def shown(
    tmp_path: Path, made: Made, *, width: int = 80, verbose: bool = False, mine: str = "mine"
) -> str:
    folder = make_run(tmp_path / "run", made, change=own(mine))  # type: ignore[arg-type]
    facts = Facts.read(folder)
    threshold.write(facts.decisions, folder / "thresholds.yaml")
    return summary(facts, width=width, verbose=verbose)


def summary(facts: Facts, *, width: int, verbose: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False)
    finished = Finished(facts.folder, facts.plan, facts.results, 2.0, 1.0)
    terminal.print_summary(finished, console, verbose=verbose)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def panel(text: str) -> list[str]:
    lines = text.splitlines()
    [top] = [n for n, line in enumerate(lines) if line.startswith("╭")]
    assert lines[-1].startswith("╰"), "something stands below the answer"
    return [line.strip("│ ") for line in lines[top + 1 : -1]]


def test_the_answer_comes_last_in_at_most_ten_lines(tmp_path: Path) -> None:
    made = Made(implementations=("rows_group", "rows_cuda", "mine"))
    text = shown(tmp_path, made)
    lines = panel(text)
    assert len(lines) <= 10
    assert lines[0].startswith("mine: RIGHT 16 of 16, device: 0.87x as fast (0.50 to 1.5")
    assert lines[1].startswith("decision (device): mine: worth using from L = 256 on")
    assert lines[2].startswith("believable: controls: 16 caught, 0 missed; what is unproven")
    assert not any("rows_" in line for line in lines), "what ships stands in the table"


def test_what_the_harness_takes_is_said(tmp_path: Path) -> None:
    text = " ".join(shown(tmp_path, Made()).split())
    assert "the harness took 1.0 s of it (50%)" in text


def test_a_ratio_over_a_slow_loop_alone_is_in_no_average(tmp_path: Path) -> None:
    """`113.76x as fast` stood in a panel, over a loop in torch, and in the page as well."""

    ratio = {64: 2.0, 128: 50.0}
    made = Made(kind=Kind.GENERAL, ratio=ratio.__getitem__, lengths=(64, 128))
    facts = Facts.read(make_run(tmp_path / "run", made))
    text = summary(facts, width=200)
    assert "device: 2.00x as fast (1.99 to 2.0" in text
    assert "no specialised baseline in 4" in text
    [standing] = facts.standings
    assert len(standing.speedups[Regime.DEVICE]) == 4
    assert standing.averages == {Regime.DEVICE: pytest.approx(2.0, rel=0.02)}


def test_the_users_own_stands_last_in_the_table(tmp_path: Path) -> None:
    table = shown(tmp_path, Made(implementations=("mine", "rows_cuda"))).partition("╭")[0]
    assert table.rindex(" rows_cuda ") < table.index(" mine ")


@pytest.mark.parametrize("width", [80, 100])
def test_it_fits_the_terminal(tmp_path: Path, width: int) -> None:
    text = shown(tmp_path, Made(), width=width)
    table = text[text.index("candidates") :]
    assert max(map(len, table.splitlines())) <= width
    assert "1.50" in table and "faster" in table and "0.53" in table


def test_what_pays_is_told_in_full(tmp_path: Path) -> None:
    """It stands nowhere above the panel, and was cut at the width of the terminal."""
    facts = Facts.read(make_run(tmp_path / "run", Made()))
    heads = [(64, 4), (32, 8), (32, 2), (16, 1)]
    rungs = {8192: 0.9, 16384: 1.6, 32768: 2.5}
    paying = [
        replace(r, case_id=f"{r.case_id}-{keys}", shape={**r.shape, "HQ": queries, "H": keys})
        for queries, keys in heads
        for r in ladder(rungs)
    ]
    facts = replace(facts, results=replace(facts.results, records=paying))
    said = " ".join(panel(summary(facts, width=80)))
    told = [f"{queries}/{keys} forward from T = 16384" for queries, keys in heads]
    assert f"nsa_attention pays by its kernels alone (device): {'; '.join(told)}" in said


def test_controls_are_one_line_unless_one_was_missed(tmp_path: Path) -> None:
    folded = shown(tmp_path / "a", Made())
    assert "controls: 16 caught, 0 missed\n" in folded and "zero_output" not in folded
    assert "zero_output" in shown(tmp_path / "b", Made(), verbose=True)
    missed = shown(tmp_path / "c", Made(control_caught=False))
    assert "zero_output" in missed and any(
        line.startswith("believable: NO: zero_output was not caught") for line in panel(missed)
    )


def test_what_is_alike_is_said_once(tmp_path: Path) -> None:
    text = shown(tmp_path, Made(status=lambda _: Status.CRASHED))
    assert text.count("as the test wants it") == 2, "once above, once in the panel"
    assert "failed: mine in 16 cases, first on selection_rows" in text
    assert panel(text)[0] == "mine: CRASHED 16 of 16: as the test wants it"
    assert "its traceback and what it printed:" in text


@pytest.mark.parametrize(("count", "least"), [(3, 3), (6, 3)])
def test_many_candidates_do_not_fill_the_panel(tmp_path: Path, count: int, least: int) -> None:
    names = tuple(f"k{n}" for n in range(count))
    lines = panel(shown(tmp_path, Made(implementations=names), mine=""))
    assert len(lines) <= 10 and sum(line.startswith("decision") for line in lines) <= 3
    told = [line for line in lines if ": RIGHT " in line]
    left = count - len(told)
    assert len(told) >= least
    assert not left or any(f"and {left} more: see" in line for line in lines)


def test_what_is_so_in_all_regimes_is_said_once(tmp_path: Path) -> None:
    made = Made(ratio=lambda _: 2.0, queue_ratio=lambda _: 2.0)
    lines = panel(shown(tmp_path, made))
    assert [line for line in lines if line.startswith("decision")] == [
        "decision (device, queue): mine: worth using from L = 64 on"
    ]


def test_who_is_faster_by_less_than_is_asked_for_is_told_so(tmp_path: Path) -> None:
    """It read "not worth using at any length (faster at L=1024)"; what counts is the lower end of
    its interval."""
    lines = panel(shown(tmp_path, Made(ratio=lambda _: 1.1), width=200))
    [decision] = [line for line in lines if line.startswith("decision")]
    said = "mine: not worth using at any length (faster, but not surely 1.2 times as fast, at L="
    assert said in decision
