"""Screenshots for the README: `python -m tests.report.screenshots PAGE docs/images`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.report.browser import chromium


def main(page: Path, folder: Path) -> None:
    with chromium() as browser:
        for name, width, height, dark in (
            ("report", 1200, 820, False),
            ("report-phone", 375, 760, True),
        ):
            browser.open(page.resolve(), width=width, height=height, dark=dark)
            browser.js("document.getElementById('faster').scrollIntoView({behavior: 'instant'})")
            browser.screenshot(folder / f"{name}.png", full=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
