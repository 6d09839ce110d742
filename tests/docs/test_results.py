"""All figures on the result pages come from the published runs, and no other page has figures."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
MOST_BYTES = 3_000_000
MOST_WORDS = 5_000
BLOCK = re.compile(r"<!-- results: .*?<!-- /results -->", re.S)
# The time of a kernel, a bandwidth, a rate, or a ratio of times.
FIGURE = re.compile(
    r"""\d[\d.,]*\s?(?:x|×|ms|µs|us|TB/s|GB/s|TFLOP/?s?)(?!\w)
    | \d[\d.,]*\stimes\s(?:as|slower|faster)
    | \d[\d.,]*\sof\s(?:its|the)\stime
    | ratio\s(?:is|of)\s\d""",
    re.X,
)
# Phrases that are not measured figures, but definitions or names.
NO_FIGURES = ("2x its size", "for about 2 ms")


@pytest.fixture(scope="module")
def published():
    spec = importlib.util.spec_from_file_location("published", ROOT / "docs" / "published.py")
    assert spec and spec.loader
    module = sys.modules["published"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_say_what_the_published_runs_say(published):
    runs = published.read_archive()
    for page in published.PAGES:
        assert page.read_text() == runs.fill(page), "run `python docs/generate.py`"
    for path, svg in runs.charts.items():
        assert texts(path.read_text()) == texts(svg), "run `python docs/generate.py`"


def test_the_page_says_which_directions_were_measured(published):
    directions = {what[1] for what in published.read_archive().newest if what[0] == "nsa_attention"}
    text = (RESULTS / "nsa-attention.md").read_text()
    assert ("measured the forward only" in text) == (directions == {"forward"})


def texts(svg):
    return re.findall(r"<(?:title|text)[^>]*>([^<]*)", svg)


def test_a_changed_digit_is_found(published, tmp_path):
    page = tmp_path / "page.md"
    text = (RESULTS / "selection-blocks.md").read_text()
    place = re.search(r"ratio is (\d)", text)
    assert place
    page.write_text(text[: place.start(1)] + str(9 - int(place[1])) + text[place.end(1) :])
    assert published.read_archive().fill(page) == text


def test_a_claim_that_no_run_bears_is_not_printed(published, tmp_path):
    page = tmp_path / "page.md"
    block = "<!-- results: break-even op=nsa_attention heads=64/4 -->"
    page.write_text(f"{block}\n<!-- /results -->\n")
    runs = published.read_archive()
    assert "is faster" in runs.fill(page)
    for what, (run, records) in runs.newest.items():
        runs.newest[what] = run, [r for r in records if r.length <= 8192]
    assert "is faster" not in runs.fill(page)


def test_no_other_page_has_figures():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *(ROOT / "docs").rglob("*.md")]
    found = [
        f"{page.relative_to(ROOT)}: {figure[0]}"
        for page in pages
        if page.name != "CHANGELOG.md" and page.parent.name != "notes"
        for figure in FIGURE.finditer(prose(page.read_text()))
    ]
    assert found == []


def prose(text):
    text = BLOCK.sub("", text)
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M)
    text = re.sub(r"`[^`]*`", "", text)
    for phrase in NO_FIGURES:
        text = text.replace(phrase, "")
    return text


def test_results_are_light():
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    words = [word for path in RESULTS.glob("*.md") for word in path.read_text().split()]
    assert len(words) <= MOST_WORDS
