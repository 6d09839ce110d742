"""A site has a place for comparisons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nsabench.cli.site import command
from nsabench.errors import UsageError
from nsabench.output import site
from nsabench.output.compare import compare, page, read
from tests.output.report.browser import Browser
from tests.output.report.conftest import browser as browser
from tests.runs import Made, make_run

OLDER = Made(run_id="20260101T000000Z-aaaaaa")
NEWER = replace(OLDER, run_id="20260102T000000Z-bbbbbb", triton="3.7.1", seed=1)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "versions"
    return [make_run(folder / "triton-3.6.0", OLDER), make_run(folder / "triton-3.7.1", NEWER)]


def test_one_that_is_given_is_linked_as_it_is(
    runs: list[Path], tmp_path: Path, browser: Browser
) -> None:
    made = page.write(compare(read(runs)), tmp_path / "mine.html")
    assert "--comparison" in {o for p in command.params for o in p.opts}
    first = site.write([str(runs[0])], tmp_path / "out", [made])
    assert (tmp_path / "out" / "comparisons" / "1.html").read_bytes() == made.read_bytes()
    for width in (375, 1280):
        browser.open(first, width=width)
        href, text = browser.js(
            "const a = document.querySelector('#comparisons a');"
            "return [a.getAttribute('href'), a.textContent]"
        )
        assert (href, text) == ("comparisons/1.html", "comparison with triton-3.6.0")
        assert browser.errors() == []
        assert browser.js("return document.documentElement.scrollWidth") <= width


def test_one_that_lies_beside_its_runs_is_made_anew(runs: list[Path], tmp_path: Path) -> None:
    """What lies there could be anybody's."""
    (runs[0].parent / "comparison.html").write_text("<title>evil</title><script>alert(1)</script>")
    first = site.write([str(run) for run in runs], tmp_path / "out")
    assert "triton-3.7.1 against triton-3.6.0</a>" in first.read_text()
    text = (tmp_path / "out" / "comparisons" / "1.html").read_text()
    assert "alert(1)" not in text and text == page.render(compare(read(runs)))


def test_one_that_is_made_anew_is_against_the_same_run(tmp_path: Path) -> None:
    """The page beside it, or else time, says which that is, and not the order of what is given."""
    later = OLDER.created.replace(day=2)
    folder = tmp_path / "versions"
    runs = [
        make_run(folder / "older", OLDER),
        make_run(folder / "newer", replace(NEWER, created=later)),
    ]
    for left, first in [
        (page.render(compare(read(runs[::-1]))), "newer"),
        (page.render(compare(read(runs))), "older"),
        ("<title>evil</title>", "older"),
    ]:
        (folder / "comparison.html").write_text(left)
        for number, given in enumerate((runs, runs[::-1])):
            out = tmp_path / f"{first}-{number}-{len(left)}"
            site.write([str(run) for run in given], out)
            text = (out / "comparisons" / "1.html").read_text()
            assert f"<title>nsabench · comparison with {first}</title>" in text


def test_another_page_is_refused(runs: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other.html"
    other.write_text("<title>something else</title>")
    with pytest.raises(UsageError, match="is no page of a comparison"):
        site.write([str(runs[0])], tmp_path / "out", [other])
    assert not (tmp_path / "out").exists(), "nothing is left half written"
    first = site.write([str(run) for run in runs], tmp_path / "out")
    assert 'id="comparisons"' not in first.read_text()
