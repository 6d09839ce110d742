"""The tables at the end of a run."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from nsabench.model.record import Record
from nsabench.output import terminal
from nsabench.output.terminal import tables


def record(**what: Any) -> Record:
    usual = {
        "run_id": "20260101T000000Z-abc123",
        "case_id": "0123456789ab",
        "op": "selection_ranges",
        "direction": "backward",
        "device": "cuda",
        "length": 1032,
        "dtype": "bfloat16",
        "distribution": "overlapping",
        "streams": 4,
        "role": "candidate",
        "status": "out_of_memory",
        "best_baseline": "sdpa_heads_as_queries_efficient",
        "implementation": "a_candidate_with_a_long_name",
        "verdict": "inconclusive",
        "mae": 1.234e-5,
        "median_ms": 190.4321,
        "roofline_fraction": 0.98,
        "speedup": 0.612,
        "speedup_lo": 0.0031,
        "speedup_hi": 171.7,
        **dict(
            zip(
                ("B", "S", "G", "H", "D", "Dv", "S_kv", "n_spans", "L"),
                range(1024, 1033),
                strict=True,
            )
        ),
    }
    return Record.from_row({**usual, **what})


@pytest.mark.parametrize("width", [120, 160])
def test_no_number_and_no_verdict_is_cut_off(width: int) -> None:
    file = StringIO()
    beaten = record(role="baseline", implementation="sdpa_heads_as_queries_efficient")
    Console(file=file, width=width).print(terminal.candidates_table([record(), beaten]))
    text = file.getvalue()
    assert "…" not in text
    for whole in ("out_of_memory", "1.2e-05", "190.4", "98%", "0.612 [0.003, 171.700]"):
        assert whole in text
    assert "inconclusive" in text


@pytest.mark.parametrize("width", [80, 120, 160])
def test_no_name_is_broken_into_pieces(width: int) -> None:
    ours = record(
        op="selection_rows",
        status="ok",
        implementation="mine_tail",
        best_baseline="sdpa_gqa_flash",
        queued_ms=0.1948,
        host_us=14.0,
        launches=13,
        queue_verdict="slower",
        **dict.fromkeys(("B", "S", "G", "Dv", "S_kv", "n_spans")),
    )
    file = StringIO()
    Console(file=file, width=width).print(terminal.candidates_table([ours], width))
    text = file.getvalue()
    assert "mine_tail" in text and "candidate" in text
    assert ("sdpa_gqa_flash" in text) is (width == 160)


@pytest.mark.parametrize(
    ("width", "host"), [(120, None), (160, "422, 13"), (220, "422 [410, 455], 13")]
)
def test_what_a_call_costs_its_caller_stands_beside_it(width: int, host: str | None) -> None:
    ours = record(
        status="ok",
        implementation="mine",
        queued_ms=0.494,
        host_us=422.0,
        host_p20_us=410.0,
        host_p80_us=455.0,
        launches=13,
    )
    file = StringIO()
    Console(file=file, width=width).print(terminal.candidates_table([ours], width))
    assert (host in file.getvalue()) if host else ("422" not in file.getvalue())


def test_a_verdict_with_an_unproven_check_behind_it_is_marked() -> None:
    def shown(*records: Record) -> str:
        file = StringIO()
        Console(file=file, width=160).print(terminal.candidates_table(records))
        return file.getvalue()

    proven = record(status="ok", verdict="faster")
    unproven = record(status="ok", verdict="faster", unproven="timer, baseline")
    assert "faster*" not in shown(proven) and "* no control" not in shown(proven)
    assert "faster*" in shown(unproven)
    crashed = record(status="crashed", verdict="invalid", unproven="timer")
    assert "invalid" in shown(crashed) and "invalid*" not in shown(crashed)
    assert "* no control showed that each check behind it works" in shown(unproven)


def test_a_verdict_with_something_to_bear_in_mind_is_marked() -> None:
    def shown(**changed: object) -> str:
        file = StringIO()
        table = terminal.candidates_table([record(status="ok", verdict="faster", **changed)])
        Console(file=file, width=160).print(table)
        return file.getvalue()

    general = shown(caution="no specialised baseline", speedup=4.0)
    assert "faster†" in general and "† no specialised baseline" in general
    assert "†" not in shown(speedup=4.0)
    queue = shown(
        caution="no specialised baseline", speedup=1.5, queue_verdict="faster", queue_speedup=4.0
    )
    assert queue.count("faster†") == 1 and "† no specialised baseline" in queue
    marked = record(
        status="ok",
        verdict="faster",
        caution="no specialised baseline",
        speedup=1.5,
        queue_verdict="faster",
        queue_speedup=4.0,
    )
    assert tables.standing(marked) == "device faster, queue faster†"


def test_what_others_wrote_is_no_markup() -> None:
    reason = "ImportError: [/usr/lib/x.so] of [bold]"
    console = terminal.console()
    console.file, console.width = StringIO(), 200
    console.print(
        terminal.baselines_table([record(role="baseline", status="crashed", reason=reason)])
    )
    assert reason in console.file.getvalue()


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("", 160), ("wide", 160)])
def test_who_says_how_wide_it_is_gets_that(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal.console().width == width


def test_what_is_cut_off_says_so() -> None:
    console = terminal.console()
    console.file, console.width = StringIO(), 240
    crashed = record(role="control", status="wrong", reason="x" * 101, caught="caught")
    console.print(terminal.baselines_table([crashed]))
    assert "x" * 99 + "…" in console.file.getvalue()


def test_no_verdict_stands_without_its_regime() -> None:
    assert tables.standing(record(status="ok", verdict="faster")) == "device faster"
    both = record(status="ok", verdict="faster", queue_verdict="slower")
    assert tables.standing(both) == "device faster, queue slower"
    assert tables.standing(record(status="ok", verdict="same", mode="graph")) == "graph same"
    assert tables.standing(record(status="ok", verdict=None)) == "-"


def test_what_was_not_timed_says_so_and_not_that_it_is_inconclusive() -> None:
    checked = record(
        op="selection_rows",
        status="ok",
        implementation="mine",
        median_ms=None,
        unproven="timer",
        queue_verdict="inconclusive",
        **dict.fromkeys(("B", "S", "G", "Dv", "S_kv", "n_spans")),
    )
    assert tables.standing(checked) == "not timed"
    file = StringIO()
    Console(file=file, width=80).print(terminal.candidates_table([checked], 80))
    assert "not timed" in file.getvalue() and "* no control" not in file.getvalue()
