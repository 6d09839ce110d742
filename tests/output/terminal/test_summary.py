"""The end of a run on the terminal: a table, and the answer in at most twelve lines."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from nsabench.model.record import Record
from nsabench.model.vocabulary import Kind, Regime, Role, Status, Verdict
from nsabench.output import result, tables, terminal
from nsabench.output.document import on_terminal
from nsabench.output.report import Facts
from nsabench.output.standing import standings
from nsabench.output.terminal.summary import describe_end
from nsabench.running.run import Finished
from nsabench.verdicts import thresholds_yaml
from tests.runs import Made, make_run, with_comparison
from tests.verdicts.test_break_even import ladder

MINE = "mine.py@aaaaaaaaaaaa"


def finish(folder, made, mine="mine"):
    """Return a finished run in which the candidate `mine` comes from the user's file."""

    def change(plan):
        infos = [
            i.model_copy(update={"source": type(i.source)(MINE)}) if i.name == mine else i
            for i in plan.implementations
        ]
        return plan.model_copy(update={"implementations": infos})

    facts = Facts.read(make_run(folder / "run", made, change=change))
    thresholds_yaml.write(facts.decisions, facts.folder.thresholds)
    return Finished(facts.folder, facts.plan, facts.results, 2.0, 1.0)


def show(finished, *, width=80, **how):
    how_wide = {"width": width, "force_terminal": True, "color_system": None}
    console = Console(file=io.StringIO(), markup=False, **how_wide)
    terminal.print_summary(finished, console, **how)
    return console.file.getvalue()


def lines_of(finished):
    return [sentence.text for sentence in describe_end(finished)]


def text_of(finished):
    return " ".join(" ".join(lines_of(finished)).split())


def test_the_users_candidates_come_first_and_the_answer_last(tmp_path):
    finished = finish(tmp_path, Made(implementations=("rows_group", "rows_cuda", "mine")))
    head, first, *rest = lines_of(finished)
    assert head == "complete in 2.0 s: your kernel is right"
    assert first.startswith("mine: RIGHT 16 of 16; device: 0.50x to 1.5")
    assert "shipped candidates: 2 of 2 are right" in rest
    assert show(finished).rstrip().endswith("\n".join([head, first, *rest]))
    table = show(finished).partition(head)[0]
    assert table.rindex(" rows_cuda ") < table.index(" mine ")


@pytest.mark.parametrize(
    ("count", "status"), [(9, Status.OK), (10, Status.OK), (10, Status.CRASHED)]
)
def test_it_is_short_and_fits_80_columns(tmp_path, count, status):
    names = tuple(f"kernel_{n}" for n in range(count))
    finished = finish(tmp_path, Made(implementations=names, status=lambda _: status), mine="")
    lines = lines_of(finished)
    assert len(lines) <= 12
    assert all(len(line) <= 80 for line in lines[:-1])
    named = sum(any(line.startswith(f"{name}: ") for line in lines) for name in names)
    assert named == count or f"and {count - named} more: see the table" in lines
    if status is Status.OK and count < 10:
        assert named == count and all("device" in line for line in lines[1 : count + 1])
    words = " ".join(show(finished).split())
    assert all(name in words for name in names), "a name is broken"


@pytest.mark.parametrize(
    ("made", "head", "is_red", "code"),
    [
        (Made(), "complete in 2.0 s: your kernel is right", [], 0),
        (
            Made(status=lambda _: Status.WRONG),
            "complete in 2.0 s: your kernel is wrong",
            ["mine"],
            1,
        ),
        (
            Made(status=lambda _: Status.CRASHED),
            "complete in 2.0 s: your kernel failed",
            ["mine"],
            1,
        ),
        (Made(control_caught=False), "invalid in 2.0 s: a control was not caught", [], 1),
        (Made(status=lambda _: Status.SKIPPED), "complete in 2.0 s, but no candidate", [], 5),
    ],
)
def test_only_what_failed_is_red(tmp_path, made, head, is_red, code):
    finished = finish(tmp_path, made)
    first, *rest = describe_end(finished)
    assert first.text.startswith(head)
    assert ("red" in first.style) is (code == 1)
    red = [sentence.text.partition(":")[0] for sentence in rest if "red" in sentence.style]
    assert [name for name in red if not name.startswith(" ")] == is_red
    assert result.exit_code(finished) == code


def test_the_first_line_says_whose_kernels_failed(tmp_path):
    names = ("rows_group", "rows_cuda", "mine")
    made = Made(implementations=names, status=lambda _: Status.CRASHED)
    head = lines_of(finish(tmp_path / "a", made))[0]
    assert head == "complete in 2.0 s: your kernel failed, 2 shipped kernels failed"
    shipped = lines_of(finish(tmp_path / "b", made, mine=""))[0]
    assert shipped == "complete in 2.0 s: 3 shipped kernels failed"


def test_a_kernel_that_did_not_run_is_not_counted_as_right(tmp_path):
    made = Made(implementations=("rows_group", "mine"), status=lambda _: Status.SKIPPED)
    assert "shipped candidates: 0 of 0 are right; 1 did not run" in lines_of(finish(tmp_path, made))


def test_an_inconclusive_ratio_is_in_no_span(tmp_path):
    """`0.00x as fast, 2 inconclusive` reads like an answer."""
    ratio = {64: 2.0, 128: 1.0, 256: 2.0, 512: 2.0}
    made = Made(noise=0.05, samples=12, ratio=ratio.__getitem__, shapes=((256, 4, 64),))
    finished = finish(tmp_path, made)
    [standing] = standings(finished.results.records)
    unclear = [r for r in standing.records if r.verdict is Verdict.INCONCLUSIVE]
    assert 0 < len(standing.list_ratios(Regime.DEVICE)) == 8 - len(unclear) < 8
    none = finish(tmp_path / "none", Made(noise=0.05, samples=8, seed=1, ratio=lambda _: 1.0))
    assert "device: 16 inconclusive (" in text_of(none)


@pytest.mark.parametrize("status", [Status.OK, Status.WRONG])
def test_whether_it_is_right_comes_before_what_is_not_decided(tmp_path, status):
    """The timing comes second for right and for wrong kernels."""
    made = Made(status=lambda _: status, noise=0.2, samples=6, ratio=lambda _: 1.0)
    text = text_of(finish(tmp_path, made)).partition("mine: ")[2]
    first, second, *_ = text.partition(" controls: ")[0].split("; ")
    assert first.startswith("RIGHT" if status is Status.OK else "WRONG")
    assert second.startswith("not decided" if status is Status.OK else "not timed")


def test_a_crash_names_its_log(tmp_path):
    finished = finish(tmp_path, Made(status=lambda _: Status.CRASHED))
    text = show(finished)
    assert "failed: mine in 16 cases" in text and str(finished.folder.path / "logs") in text
    assert text.count("as the test wants it") == 2, "above with its log, and in the answer"


def test_the_controls_are_listed_only_if_one_was_missed(tmp_path):
    caught, missed = Made(), Made(control_caught=False)
    assert "zero_output" not in show(finish(tmp_path / "a", caught))
    assert "zero_output" in show(finish(tmp_path / "b", caught), verbose=True)
    shown = show(finish(tmp_path / "c", missed))
    assert "zero_output" in shown and "nothing is decided" in shown


def test_a_ratio_over_general_baselines_alone_is_in_no_average(tmp_path):
    ratio = {64: 2.0, 128: 50.0}
    made = Made(kind=Kind.GENERAL, ratio=ratio.__getitem__, lengths=(64, 128))
    finished = finish(tmp_path, made)
    text = text_of(finished)
    assert "no specialised baseline in 4" in text
    [standing] = standings(finished.results.records)
    ratios = [c.ratio for c in standing.list_ratios(Regime.DEVICE)]
    assert ratios == [pytest.approx(2.0, rel=0.02)] * 4


def test_without_a_baseline_the_ratio_is_to_the_best_alternative(tmp_path):
    records = [
        with_comparison(r, Regime.DEVICE, median_ms=1.0, verdict=Verdict.INCONCLUSIVE)
        for r in ladder({8192: 0.9, 16384: 2.5})
        if r.role is Role.CANDIDATE
    ]
    [standing] = standings(records)
    assert standing.speed == ["device: 0.90x to 2.50x as fast as dense"]
    text = table_of(*records)
    assert "0.90‡" in text and "2.50‡" in text and "\n‡ " in text and "inconclusive" not in text


@pytest.mark.parametrize(
    "what", [{"against": "sdpa"}, {"verdict": Verdict.INVALID}, {"time_doubt": "throttled"}]
)
def test_an_alternative_stands_in_for_no_baseline_that_says_no(what):
    [first, *_] = ladder({8192: 9.0})
    first = replace(first, time_doubt=what.pop("time_doubt", ""))
    judged = {"median_ms": 1.0, "verdict": Verdict.INCONCLUSIVE, **what}
    text = table_of(with_comparison(first, Regime.DEVICE, **judged))
    assert str(judged["verdict"]) in text and "9.00" not in text


def test_break_even_lengths_are_in_the_answer(tmp_path):
    finished = finish(tmp_path, Made())
    heads = [(64, 4), (32, 8), (32, 2), (16, 1)]
    rungs = {8192: 0.9, 16384: 1.6, 32768: 2.5}
    paying = [
        replace(r, case_id=f"{r.case_id}-{keys}", shape={**r.shape, "HQ": queries, "H": keys})
        for queries, keys in heads
        for r in ladder(rungs)
    ]
    infos = [
        info.model_copy(update={"op": r.op, "name": r.implementation})
        for r in ladder(rungs)
        for info in finished.plan.implementations[:1]
    ]
    plan = finished.plan.model_copy(update={"implementations": infos})
    results = replace(finished.results, records=paying)
    finished.folder.thresholds.unlink()
    finished = replace(finished, plan=plan, results=results)
    text = text_of(finished)
    told = [f"{queries}/{keys} forward from T = 16384" for queries, keys in heads]
    assert f"nsa_attention pays by its kernels alone (device): {'; '.join(told)}" in text
    for width in range(70, 90):  # no line ends within a length
        assert show(finished, width=width).count("T = 16384") >= len(told)


SIZES = ("B", "S", "G", "H", "D", "Dv", "S_kv", "n_spans", "L")


def record(queue=None, **what):
    """Make a record. `queue` holds the fields of its comparison in the queue, or None for no
    comparison."""
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
        "status": "ok",
        "implementation": "a_candidate_with_a_long_name",
        "mae": 1.234e-5,
        "host_us": 422.0,
        "launches": 13,
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


def table_of(*records, width=80, wide=False):
    file = io.StringIO()
    for block in on_terminal(tables.candidates(records, wide=wide)):
        Console(file=file, width=width).print(block)
    return file.getvalue()


def test_the_table_has_the_sizes_that_vary_and_a_column_for_each_regime():
    queue = {"verdict": Verdict.SLOWER, "median_ms": 0.1948, "ratio": 0.875}
    longer = record(queue, length=2048, L=2048, case_id="ba9876543210")
    text = table_of(record(queue), longer)
    lines = text.splitlines()
    title = text.partition("candidate")[0].split()
    assert "B1024" in title and "bf16" in title
    [header] = [line.split() for line in lines if " candidate " in line]
    assert header == ["L", "candidate", "ms", "device", "×", "queue", "×"]
    assert "0.61 inconclusive" in text and "0.88 slower" in text
    assert len([line for line in lines if "a_candidate_with_a_long_name" in line]) == 2


def test_a_wide_table_has_every_column_and_cuts_nothing():
    beaten = record(role="baseline", implementation="sdpa_heads_as_queries_efficient")
    queue = {"median_ms": 0.494, "verdict": Verdict.SAME}
    text = table_of(record(queue), beaten, width=170, wide=True)
    for part in ("1.2e-05", "190.4", "98%", "0.61 [0.00, 171.70]", "0.494", "422", "…"):
        assert (part in text) is (part != "…")


@pytest.mark.parametrize(
    ("what", "verdicts"),
    [
        ({"verdict": Verdict.FASTER}, "0.61 faster"),
        ({"verdict": Verdict.SAME, "mode": "graph"}, "graph × 0.61 same"),
        ({"verdict": None}, "–"),
        ({"median_ms": None, "queue": {"verdict": Verdict.FASTER}}, "not timed"),
        ({"verdict": Verdict.FASTER, "unproven": "timer, baseline"}, "0.61 faster*"),
        ({"status": "crashed", "verdict": Verdict.INVALID}, "crashed"),
        (
            {"verdict": Verdict.FASTER, "ratio": 4.0, "caution": "no specialised baseline"},
            "4.00 faster†",
        ),
    ],
)
def test_a_verdict_has_its_regime_and_a_mark_that_is_explained(what, verdicts):
    text = table_of(record(**what))
    words = [word for word in text.split() if word not in ("─", "a_candidate_with_a_long_name")]
    assert all(word in words for word in verdicts.split()), text
    for mark in "*†":
        assert (f"\n{mark} " in text) is (mark in verdicts)
