"""How commands answer: what others wrote in a text is shown, and not obeyed by the terminal."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import click

from nsabench.text import shown


def say(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print text, on standard error if `err`."""
    click.echo(shown(text, lines=True), err=err, nl=nl)


def say_json(data: object) -> None:
    """Print data for a program."""
    say(json.dumps(data, indent=1))


def show_page(page: Path) -> None:
    """Open a page in a browser, or say on standard error why it cannot be opened."""
    if not page.is_file():
        say(f"nsabench: there is no {page} to open", err=True)
    elif not webbrowser.open(page.absolute().as_uri()):
        say(f"nsabench: there is no browser here; the page is {page.absolute()}", err=True)
