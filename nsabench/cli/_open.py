"""How commands show a page to the one who asked for it."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from nsabench.cli._say import say


def show_page(page: Path) -> None:
    """Open it in a browser; where there is none, or no page, say so on standard error."""
    if not page.is_file():
        say(f"nsabench: there is no {page} to open", err=True)
    elif not webbrowser.open(page.absolute().as_uri()):
        say(f"nsabench: there is no browser here; the page is {page.absolute()}", err=True)
