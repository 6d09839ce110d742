"""How commands print lines: what others wrote in them is shown, and not obeyed by the terminal."""

from __future__ import annotations

import click

from nsabench.text import shown


def say(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print text, on standard error if `err`."""
    click.echo(shown(text, lines=True), err=err, nl=nl)
