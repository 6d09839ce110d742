"""Screenshots for the README: `python -m tests.output.report.screenshots PAGE docs/images`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.output.report.browser import chromium


def main(page: Path, folder: Path) -> None:
    with chromium() as browser:
        for name, width, height, dark, where, padding in (
            ("report", 1200, 1150, False, "header", "0"),
            ("report-phone", 375, 760, True, "#faster", "0"),
        ):
            browser.open(page.resolve(), width=width, height=height, dark=dark)
            browser.js(
                "document.documentElement.style.scrollPaddingTop = arguments[1];"
                "document.querySelector(arguments[0]).scrollIntoView({behavior: 'instant'})",
                where,
                padding,
            )
            browser.screenshot(folder / f"{name}.png", full=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
