"""The page of a comparison in a real browser without a network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nsabench.model.vocabulary import Status
from nsabench.output.compare import compare, document, read
from tests.output.compare.test_comparison import NEWER, STEADY
from tests.output.report.browser import Browser
from tests.output.report.conftest import browser as browser
from tests.output.report.test_page import MOST_BYTES, SHOTS
from tests.runs import make_run

HOSTILE = "mine</script><script>window.hacked=1</script>"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: in the second the shortest cases crash, in the third the longest are slow."""
    folder = tmp_path_factory.mktemp("runs")
    names = (HOSTILE, "other")
    first = replace(STEADY, implementations=names)
    crashes = replace(
        NEWER,
        implementations=names,
        status=lambda n: Status.CRASHED if n == 64 else Status.OK,
    )
    slow = replace(
        NEWER,
        run_id="20260301T000000Z-abc125",
        implementations=names,
        ratio=lambda n: 0.75 if n == 512 else 1.5,
    )
    runs = [
        make_run(folder / name, made)
        for name, made in (("torch2.11", first), ("torch2.12", crashes), ("torch2.13", slow))
    ]
    return document.write_page(compare(read(runs)), folder / "compare.html")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [375, 1440])
def test_it_draws_everything_and_asks_for_nothing(
    compared: Path, browser: Browser, width: int, dark: bool
) -> None:
    browser.open(compared, width=width, dark=dark)
    browser.screenshot(SHOTS / f"compare-{width}-{'dark' if dark else 'light'}.png")
    browser.check({"heat", "ratios"}, dark=dark)
    assert browser.js("return window.hacked") is None
    assert compared.stat().st_size < MOST_BYTES


def test_the_matrix_shows_status_or_ratio_in_each_run(compared: Path, browser: Browser) -> None:
    browser.open(compared)
    shown = browser.texts("heat")
    assert {"torch2.11", "torch2.12", "torch2.13"} <= set(shown)
    assert shown.count("crashed") == 4 and sum("▲" in text for text in shown) == 40
    assert sum("▼" in text for text in shown) == 4
    browser.choose("pick-what", "ratio")
    shown = browser.texts("heat")
    assert sum(text.endswith(" ms") for text in shown) == 16, "the first run has times"
    assert sum("= 1.00" in text for text in shown) == 24
    browser.choose("pick-cases", "slower")
    shown = browser.texts("heat")
    assert sum(text.endswith(" ms") for text in shown) == 4
    assert {text for text in shown if "▼" in text} == {"▼ 0.50"}
    browser.choose("pick-cases", "change")
    assert browser.texts("heat").count("crashed") == 4
    assert browser.errors() == []


def test_filters_and_the_table(compared: Path, browser: Browser) -> None:
    browser.open(compared)
    assert "96 rows" in browser.js("return document.querySelector('#cells').textContent")
    browser.choose("filter-dtype", "bfloat16")
    assert "48 rows" in browser.js("return document.querySelector('#cells').textContent")
    browser.js(
        "const i = document.querySelector('[data-table=cells] input');"
        "i.value = 'broke other'; i.dispatchEvent(new Event('input'))"
    )
    lines = browser.rows("cells")
    assert len(lines) == 2 and all(row[2] == "other" and row[5] == "crashed" for row in lines)
