"""The tables at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime, Verdict
from nsabench.output import tables, terminal
from nsabench.output.document import on_terminal
from tests.runs import with_comparison

FASTER = Verdict.FASTER
SIZES = ("B", "S", "G", "H", "D", "Dv", "S_kv", "n_spans", "L")
OF_ROWS = {"op": "selection_rows", **dict.fromkeys(("B", "S", "G", "Dv", "S_kv", "n_spans"))}


def record(queue: Mapping[str, Any] | None = None, **what: Any) -> Record:
    """queue: what its comparison in that regime says; None: there is none."""
    usual = {
        "run_id": "20260101T000000Z-abc123",
        "case_id": "0123456789ab",
        "op": "selection_ranges",
        "direction": "backward",
        "device": "cuda",
        "length": 1032,
        "dtype": "bfloat16",
        "distribution": "overlapping",
        "role": "candidate",
        "status": "out_of_memory",
        "implementation": "a_candidate_with_a_long_name",
        "mae": 1.234e-5,
        "roofline_fraction": 0.98,
        **dict(zip(SIZES, range(1024, 1033), strict=True)),
    }
    compared = {
        "against": "sdpa_heads_as_queries_efficient",
        "verdict": Verdict.INCONCLUSIVE,
        "ratio": 0.612,
        "median_ms": 190.4321,
        "lo": 0.0031,
        "hi": 171.7,
    }
    compared |= {name: what.pop(name) for name in compared.keys() & what}
    made = Record.from_row({**usual, **what})
    made = with_comparison(made, made.regime, **compared)
    return made if queue is None else with_comparison(made, Regime.QUEUE, **queue)


def shown(*records: Record, width: int = 160) -> str:
    file = StringIO()
    for block in on_terminal(tables.candidates_on_terminal(records, width)):
        Console(file=file, width=width).print(block)
    return file.getvalue()


def test_no_number_and_no_verdict_is_cut_off() -> None:
    beaten = record(role="baseline", implementation="sdpa_heads_as_queries_efficient")
    text = shown(record(), beaten, width=160)
    assert "…" not in text
    numbers = ("1.2e-05", "190.4", "98%", "0.612 [0.003, 171.700]")
    for whole in ("out_of_memory", "inconclusive", *numbers):
        assert whole in text


@pytest.mark.parametrize("width", [80, 120, 160])
def test_no_name_is_broken_into_pieces(width: int) -> None:
    ours = record(
        **OF_ROWS,
        status="ok",
        implementation="mine_tail",
        against="sdpa_gqa_flash",
        host_us=14.0,
        launches=13,
        queue={"verdict": Verdict.SLOWER, "median_ms": 0.1948},
    )
    text = shown(ours, width=width)
    assert "mine_tail" in text and "candidate" in text
    assert ("sdpa_gqa_flash" in text) is (width == 160)


@pytest.mark.parametrize("width", [120, 160])
def test_what_a_call_costs_its_caller_stands_in_a_wide_table(width: int) -> None:
    ours = record(
        status="ok", implementation="mine", queue={"median_ms": 0.494}, launches=13, host_us=422.0
    )
    text = shown(ours, width=width)
    assert ("422" in text) is (width == 160)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"verdict": FASTER}, "device faster"),
        ({"verdict": FASTER, "queue": {"verdict": Verdict.SLOWER}}, "device faster, queue slower"),
        ({"verdict": Verdict.SAME, "mode": "graph"}, "graph same"),
        ({"verdict": None}, "-"),
        (
            {"median_ms": None, "unproven": "timer", "queue": {"verdict": Verdict.FASTER}},
            "not timed",
        ),
        ({"verdict": FASTER, "unproven": "timer, baseline"}, "device faster*"),
        ({"status": "crashed", "verdict": Verdict.INVALID, "unproven": "timer"}, "device invalid"),
        ({"verdict": FASTER, "ratio": 4.0}, "device faster"),
    ],
)
def test_no_verdict_stands_without_its_regime_and_its_mark(
    what: dict[str, object], said: str
) -> None:
    own = record(**{"status": "ok", **what})
    assert tables.standing(own) == said
    assert ("* no control showed that each check behind it works" in shown(own)) is ("*" in said)


def test_a_verdict_with_something_to_bear_in_mind_is_marked() -> None:
    bear = {"status": "ok", "verdict": FASTER, "caution": "no specialised baseline"}
    general = shown(record(**bear, ratio=4.0))
    assert "faster†" in general and "† no specialised baseline" in general
    queue = record(**bear, ratio=1.5, queue={"verdict": FASTER, "ratio": 4.0})
    assert tables.standing(queue) == "device faster, queue faster†"
    assert "† no specialised baseline" in shown(queue)


def test_what_others_wrote_is_no_markup_and_what_is_cut_off_says_so() -> None:
    reason = "ImportError: [/usr/lib/x.so] of [bold]"
    console = terminal.console()
    console.file, console.width = StringIO(), 240
    crashed = record(role="baseline", status="crashed", reason=reason)
    long = record(role="control", status="wrong", reason="x" * 101, caught="caught")
    console.print(*on_terminal([tables.others([crashed, long])]))
    assert reason in console.file.getvalue() and "x" * 99 + "…" in console.file.getvalue()


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("", 160), ("wide", 160)])
def test_who_says_how_wide_it_is_gets_that(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal.console().width == width
