"""report.html in a real browser without a network."""

import os
import re
from pathlib import Path

import pytest

from nsabench.model.vocabulary import Kind, Status
from nsabench.output.report import Facts, write_html
from tests.runs import Made, make_run

MOST_BYTES = 1_500_000
CHARTS = {"heat", "intervals", "time", "samples", "roofline", "parity"}
# CI says where screenshots are kept.
SHOTS = Path(os.environ.get("NSABENCH_SCREENSHOTS", "results/screenshots"))


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    return write_html(Facts.read(run), tmp_path_factory.mktemp("page"))


@pytest.mark.parametrize(("width", "dark"), [(375, True), (1440, False)])
def test_it_draws_everything_asks_for_nothing_and_shuts_nobody_out(
    page, invalid_run, browser, width, dark, tmp_path
):
    browser.open(page, width=width, dark=dark)
    browser.screenshot(SHOTS / f"report-{width}-{'dark' if dark else 'light'}.png")
    browser.check(CHARTS, dark=dark)
    for made in (page, write_html(Facts.read(invalid_run), tmp_path)):
        browser.open(made, width=width, dark=dark)
        unfold_all(browser)
        assert browser.obstacles() == []
        assert too_wide(browser) == []
        assert browser.js("return document.documentElement.scrollWidth") <= width


def test_filters_narrow_charts_and_tables(page, browser):
    browser.open(page)
    assert len(browser.rows("candidates")) == 16
    browser.choose("filter-dtype", "bfloat16")
    assert len(browser.rows("candidates")) == 8
    labels = browser.texts("heat")
    assert "N256 H4 D64" in labels
    assert not any("fp16" in label for label in labels)


def test_what_decides_nothing_has_no_colour(tmp_path, browser):
    run = make_run(
        tmp_path / "run", Made(noise=0.2, samples=8, ratio=lambda n: 1.02 if n < 256 else 3.0)
    )
    browser.open(write_html(Facts.read(run), tmp_path))
    fills = browser.js(
        "const marks = (of) => [...document.querySelectorAll(`[data-chart=heat] g.${of}`)];"
        "const cells = marks('layer_0_marks path'), words = marks('layer_1_marks text');"
        "return words.map((t, i) => [t.textContent, cells[i].getAttribute('fill')])"
    )
    assert len(fills) == 16
    undecided = {fill for text, fill in fills if text.startswith("?")}
    decided = {fill for text, fill in fills if text[0] in "▲▼"}
    assert len(undecided) == 1 and decided
    assert not undecided & decided


def test_tables_are_searched_and_sorted(page, browser):
    browser.open(page)
    browser.js(
        "const i = document.querySelector('[data-table=candidates] input');"
        "i.value = 'nasty crashed'; i.dispatchEvent(new Event('input'))"
    )
    lines = browser.rows("candidates")
    assert len(lines) == 6
    assert all("nasty_one" in row[1] for row in lines)
    browser.js(
        "const i = document.querySelector('[data-table=candidates] input');"
        "i.value = ''; i.dispatchEvent(new Event('input'))"
    )
    head = "document.querySelectorAll('[data-table=candidates] thead button')[5]"
    for direction, sign in (("descending", -1), ("ascending", 1)):
        browser.js(f"{head}.click()")
        assert browser.js(f"return {head}.parentElement.ariaSort") == direction
        times = [row[5] for row in browser.rows("candidates")]
        numbers = [milliseconds(t) for t in times if t != "–"]
        assert numbers == sorted(numbers, key=lambda t: sign * t)
        assert times[len(numbers) :] == ["–"] * 6, "what has no time comes last"


def milliseconds(text):
    value, unit = text.split()
    return float(value) * {"µs": 1e-3, "ms": 1, "s": 1e3}[unit]


def test_a_row_says_only_what_tells_it_apart_and_has_its_baselines_time(page, browser):
    browser.open(page)
    row = browser.rows("candidates")[0]
    assert row[:3] == ["L64 fp16", "quick_one", "▲ faster"]
    own, baseline = milliseconds(row[5]), milliseconds(row[6])
    assert row[7] == "sdpa_gqa" and row[4].startswith(f"{baseline / own:.2f}×")
    assert "In all cases N256 H4 D64" in browser.js("return document.body.textContent")
    intervals = browser.texts("intervals")
    assert "L64 fp16" in intervals and not any("N256" in text for text in intervals)


def called(tmp_path, **made):
    """Write the page of a run that also has timings of calls from Python."""
    usual = {"queue_ratio": lambda _: 0.5, "host_us": 422.4, "launches": 13}
    run = make_run(tmp_path / "run", Made(**{**usual, **made}))
    return write_html(Facts.read(run), tmp_path)


def unfolded(browser, table):
    """Unfold the first row of a table and return the details below it."""
    browser.js(f"document.querySelector('[data-table={table}] button.fold').click()")
    pairs = browser.js(
        "return [...document.querySelectorAll(`[data-table=${arguments[0]}] tr.details dt`)]"
        ".map(t => [t.textContent, t.nextSibling.textContent])",
        table,
    )
    return dict(pairs)


@pytest.mark.parametrize(
    ("outcome", "width", "height"),
    [("right", 1280, 720), ("right", 375, 760), ("wrong", 375, 760)],
)
def test_the_first_screen_answers(tmp_path, browser, outcome, width, height):
    status = Status.OK if outcome == "right" else Status.WRONG
    made = {"status": lambda length: status, "queue_ratio": lambda _: 1.5}
    browser.open(called(tmp_path, **made), width=width, height=height, unfold=False)
    browser.screenshot(SHOTS / f"first-{outcome}-{width}.png", full=False)
    inner = browser.js("return [innerWidth, document.documentElement.scrollWidth]")
    assert inner[1] <= inner[0], "the page scrolls sideways"
    answer, chart = browser.js(
        "const box = (s) => document.querySelector(s)?.getBoundingClientRect();"
        "return [box('.findings li'), box('.answer svg')]"
    )
    assert answer["bottom"] < height
    if outcome == "right" and width == 1280:
        assert chart["bottom"] < height
    elif outcome == "wrong":
        assert chart is None, "what is wrong has no ratio"
    trust = browser.js("return document.querySelector('.trust').textContent")
    assert "Unsigned: nothing shows that it was not altered" in trust
    text = browser.js("return document.querySelector('.answer').innerText")
    assert outcome.upper() in text
    for answer in ("worth using", "as fast as sdpa_gqa"):
        assert (answer in text) is (outcome == "right")
    table = browser.js("return document.querySelector('#failed table').checkVisibility()")
    assert not table, "what did not fail is folded"


def test_all_but_the_answer_and_the_failures_is_folded_and_a_link_unfolds_it(page, browser):
    browser.open(page, unfold=False)
    unfolded = browser.js(
        "return [...document.querySelectorAll('main > section')]"
        ".filter(s => !s.querySelector('details.fold:not([open])')).map(s => s.id)"
    )
    assert unfolded == ["decision", "failed"]
    browser.js("document.querySelector('nav a[href=\"#trust\"]').click()")
    browser.until("return document.querySelector('#trust details.fold').open")


def test_a_ratio_and_its_chart_name_the_references_alike(tmp_path):
    made = Made(flex_ms=lambda length: 0.1 if length > 200 else 1.0)
    page = write_html(Facts.read(make_run(tmp_path / "run", made)), tmp_path).read_text()
    assert "as fast as the best baseline (sdpa_gqa, flex_attention)" in page
    assert "device: against the best baseline (sdpa_gqa, flex_attention)</text>" in page


def test_only_decided_ratios_are_joined_by_a_line(tmp_path):
    """Readers take a line for an answer, so inconclusive points are hollow and not joined."""
    ratio = {64: 2.0, 128: 2.0, 256: 1.0, 512: 2.0}
    made = Made(noise=0.05, samples=12, ratio=ratio.__getitem__, shapes=((256, 4, 64),))
    run = make_run(tmp_path / "run", made)
    assert {r.length for r in Facts.read(run).candidates if r.verdict == "inconclusive"} == {256}
    page = write_html(Facts.read(run), tmp_path).read_text()
    chart = page.partition('class="answer"')[2].partition("</figure>")[0]
    points = re.findall(r'<path role="graphics-symbol"([^>]*)><title>([^<]*)</title>', chart)
    assert len(points) == len(ratio)
    for attributes, label in points:
        assert ('fill-opacity="0"' in attributes) is ("inconclusive" in label)
    [line] = re.findall(r'class="mark-line[^>]*><path d="([^"]*)"', chart)
    assert line.count("M") == 2, "the line ends before what is inconclusive"
    assert "hollow: inconclusive" in chart


def test_without_a_decided_ratio_a_sentence_stands_for_the_chart(tmp_path):
    run = make_run(tmp_path / "run", Made(noise=0.05, samples=8, ratio=lambda _: 1.0, seed=1))
    assert {r.verdict for r in Facts.read(run).candidates} == {"inconclusive"}
    page = write_html(Facts.read(run), tmp_path).read_text()
    answer = page.partition('class="answer"')[2].partition("<details>")[0]
    assert "<svg" not in answer
    assert "No chart of <code>mine</code>" in answer and "interval of the ratio" in answer


@pytest.mark.parametrize("table", ["candidates", "records", "case"])
def test_what_a_call_costs_its_caller_stands_below_its_row(tmp_path, browser, table):
    browser.open(called(tmp_path))
    below = unfolded(browser, table)
    assert below["host (20 % to 80 %)"] == "422.4 µs (422.4 µs to 422.4 µs)"
    time = r"[\d.]+ [µm]s"
    assert re.fullmatch(rf"{time} \({time} to {time}\)", below["queued (20 % to 80 %)"])
    assert below["launches"] == "13"


def test_a_cell_with_a_great_ratio_has_a_dagger(tmp_path, browser):
    ratios = {"ratio": lambda n: 1.5 if n < 256 else 4.0, "queue_ratio": lambda _: 4.0}
    browser.open(called(tmp_path, kind=Kind.GENERAL, **ratios))
    cells = [text for text in browser.texts("heat") if text.startswith("▲")]
    assert {text.endswith("†") for text in cells if "4.0" in text} == {True}
    assert {text.endswith("†") for text in cells if "1.5" in text} == {False}
    row = browser.rows("candidates")[0]
    assert row[2:4] == ["▲ faster", "▲ faster no specialised baseline"]
    figure = browser.js("return document.querySelector('[data-chart=heat]').textContent")
    assert "† no specialised baseline" in figure


def unfold_all(browser):
    browser.js("document.querySelectorAll('.table button.fold').forEach(b => b.click())")


def too_wide(browser):
    """Return the tables that are wider than their frame."""
    return browser.js(
        "return [...document.querySelectorAll('.table')].filter(t => t.clientWidth <"
        "t.querySelector('table').scrollWidth).map(t => t.dataset.table)"
    )


def test_a_case_shows_its_samples(page, browser):
    browser.open(page)
    browser.js("document.querySelector('[data-table=candidates] button.link').click()")
    text = browser.until(
        "const t = document.getElementById('samples-case').textContent;"
        "return t.includes('L64 ') && t"
    )
    assert text.startswith("N256 H4 D64 L64 fp16")
    assert browser.js("return document.activeElement.dataset.chart") == "samples"
    assert browser.rows("case")[0][0] == "quick_one"


def test_an_invalid_run_says_so_first(invalid_run, browser, tmp_path):
    path = write_html(Facts.read(invalid_run), tmp_path)
    browser.open(path, width=375)
    browser.screenshot(SHOTS / "report-invalid.png", full=False)
    first = browser.js("return document.querySelector('main section').textContent")
    assert first.index("This run is invalid and decides nothing") < first.index("quick_one")
    assert browser.js("return document.querySelectorAll('.findings').length") == 0
    assert browser.js("return document.title").startswith("INVALID")
    assert browser.errors() == []


def test_the_same_run_gives_the_same_page(run, page, tmp_path):
    rewritten = write_html(Facts.read(run), tmp_path)
    assert rewritten.read_bytes() == page.read_bytes()
    assert page.stat().st_size < MOST_BYTES


def test_a_kernel_that_was_only_checked_is_not_called_inconclusive(tmp_path, browser):
    page = write_html(Facts.read(make_run(tmp_path / "run", Made(samples=0))), tmp_path)
    answer = page.read_text().partition('class="answer"')[2].partition("<pre")[0]
    assert "not timed" in answer and "inconclusive" not in answer
    browser.open(page)
    assert {row[2] for row in browser.rows("candidates")} == {"not timed"}
