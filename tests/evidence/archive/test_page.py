"""The page of an archive in a real browser without a network."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from nsabench.errors import UsageError
from nsabench.evidence.manifest import seal
from nsabench.model.vocabulary import Status
from tests.output.report.browser import Browser
from tests.output.report.conftest import browser as browser
from tests.output.report.test_page import MOST_BYTES, SHOTS
from tests.runs import SIGNER, Made, make_run

pytest.importorskip("obstore")
pytest.importorskip("duckdb")
from nsabench.evidence.archive import Archive
from nsabench.output import archive_page as page

TORCHES = ("2.9.1", "2.11.0", "2.13.0", "2.11.0")


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two GPUs, three versions of torch; the candidate gets faster from run to run. In the second
    run its shortest cases crash, and the third on the L4 missed a control."""
    folder = tmp_path_factory.mktemp("archive")
    archive = Archive(str(folder / "archive"), create=True)
    signer = SIGNER
    for number, torch in enumerate(TORCHES):
        for letter, gpu in (("a", "NVIDIA H200"), ("b", "NVIDIA L4")):
            made = Made(
                run_id=f"2026010{number + 1}T000000Z-00000{letter}",
                created=datetime(2026, 1, number + 1, tzinfo=UTC),
                torch=torch,
                gpu=gpu,
                ratio=lambda _, n=number: 1.5 + n / 10,
                status=lambda length, n=number: (
                    Status.CRASHED if n == 1 and length == 64 else Status.OK
                ),
                control_caught=(number, letter) != (2, "b"),
            )
            run = make_run(folder / made.run_id, made)
            seal(run, signer)
            archive.add(run)
    return page.write(archive, folder / "archive.html")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [375, 1440])
def test_it_draws_everything_and_asks_for_nothing(
    archived: Path, browser: Browser, width: int, dark: bool
) -> None:
    browser.open(archived, width=width, dark=dark)
    browser.screenshot(SHOTS / f"archive-{width}-{'dark' if dark else 'light'}.png")
    browser.check({"heat", "trend"}, dark=dark)
    assert archived.stat().st_size < MOST_BYTES


def test_versions_show_their_latest_run(archived: Path, browser: Browser) -> None:
    browser.open(archived)
    browser.choose("filter-gpu", "NVIDIA H200")
    shown = browser.texts("heat")
    order = [text for text in shown if text.startswith("torch ")]
    assert order == [
        "torch 2.9.1 triton 3.6.0(unpaired)",
        "torch 2.11.0 triton 3.6.0",
        "torch 2.13.0 triton 3.6.0(unpaired)",
    ]
    assert [text for text in shown if "×  ·" in text or "× ·" in text] == [
        "1.50× · 16/16 ok",
        "1.80× · 16/16 ok",
        "1.70× · 16/16 ok",
    ]


def test_only_means_of_the_same_cases_are_joined(archived: Path, browser: Browser) -> None:
    browser.open(archived)
    browser.choose("filter-gpu", "NVIDIA H200")
    lines = browser.js(
        "return [...document.querySelectorAll('[data-chart=trend] .mark-line path')]"
        ".map(p => (p.getAttribute('d').match(/[ML]/g) || []).length).sort()"
    )
    assert lines == [1, 3], "the run with crashes has a mean of other cases"
    lines = browser.rows("runs")
    assert [row[7] for row in lines] == ["16 of 16", "16 of 16", "12 of 16", "16 of 16"]
    assert {row[5] for row in lines} == {"device"}
    browser.choose("pick-what", "time_ms")
    assert browser.errors() == []


def test_a_run_that_decides_nothing_is_named(archived: Path, browser: Browser) -> None:
    browser.open(archived)
    banner = browser.js("return document.querySelector('.banner.bad').textContent")
    assert "1 run decides nothing" in banner and "20260103T000000Z-00000b" in banner


def test_an_empty_archive(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no runs"):
        page.write(Archive(str(tmp_path), create=True), tmp_path / "archive.html")
