"""Make pictures for the README: `PYTHONPATH=. python docs/screenshots.py PAGE docs/images`.

PAGE is the page of a run. `--site INDEX` adds the page of a site, `--run RUN` the terminal after
that run.
"""

import argparse
import io
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from nsabench.model.plan import Plan
from nsabench.output import terminal
from nsabench.output.report import Facts
from nsabench.running.run import Finished
from tests.output.report.browser import Browser, chromium

WIDE, HIGH = 80, 24  # columns and lines of the terminal
# Name, width and height in pixels, whether it is dark, and the element to scroll to.
OF_A_PAGE = (
    ("report", 1280, 720, False, "header"),
    ("report-phone", 375, 760, True, "#faster"),
)
OF_A_SITE = (("site", 1280, 720, False, "header"),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--run", type=Path)
    given = parser.parse_args()
    with chromium() as browser:
        for name, width, height, dark, top in OF_A_PAGE:
            browser.open(given.page.resolve(), width=width, height=height, dark=dark)
            _shoot(browser, given.folder / f"{name}.png", top)
        for name, width, height, dark, top in OF_A_SITE if given.site else ():
            browser.open(given.site.resolve(), width=width, height=height, dark=dark)
            _shoot(browser, given.folder / f"{name}.png", top)
        if given.run:
            _of_a_terminal(browser, given.run, given.folder / "terminal.png")


def _shoot(browser: Browser, picture: Path, top: str) -> None:
    browser.js(
        "document.documentElement.style.scrollPaddingTop = '0';"
        "document.querySelector(arguments[0]).scrollIntoView({behavior: 'instant'})",
        top,
    )
    browser.screenshot(picture, full=False)


def _of_a_terminal(browser: Browser, run: Path, picture: Path) -> None:
    """Save a picture of what `nsabench all` printed last, as rich draws a terminal."""
    console = shown(run)
    with TemporaryDirectory() as scratch:
        page = Path(scratch) / "terminal.svg"
        # The page would load this font from a network, so name an installed font.
        svg = console.export_svg(title="nsabench all")
        page.write_text(svg.replace("Fira Code", "DejaVu Sans Mono"))
        box = svg.partition('viewBox="0 0 ')[2].partition('"')[0].split()
        width, height = (round(float(side)) for side in box)
        browser.size(width, height)
        browser.driver.get(page.as_uri())
        browser.screenshot(picture, full=False)


def shown(run: Path) -> Console:
    """Return a recording of the last screen: the end of the table, and the panel below it."""
    facts = Facts.read(run)
    whole = terminal.console()
    whole.file, whole.width = io.StringIO(), WIDE
    whole._color_system = ColorSystem.TRUECOLOR  # else rich writes no colours to a file
    finished = Finished(facts.folder, Plan.read(run / "plan.json"), facts.results, *took(facts))
    terminal.print_summary(finished, whole)
    screen = Console(file=io.StringIO(), record=True, width=WIDE)
    printed = [Text.from_ansi(line) for line in whole.file.getvalue().splitlines()]
    lines = [part for line in printed for part in line.wrap(screen, WIDE) or [line]]
    for line in lines[1 - HIGH :]:  # one line less, for the prompt
        screen.print(line, no_wrap=True, crop=True)
    return screen


def took(facts: Facts) -> tuple[float, float]:
    """Return how many seconds the run took, and how many of them it measured."""
    logs = [part.log for part in facts.parts]
    return sum(log.wall_s for log in logs), sum(log.measuring_s for log in logs)


if __name__ == "__main__":
    main()
