"""How commands answer: what others wrote in a text is shown, and not obeyed by the terminal."""

from __future__ import annotations

import json

import click

from nsabench.text import shown


def say(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print text, on standard error if `err`."""
    click.echo(shown(text, lines=True), err=err, nl=nl)


def say_json(data: object) -> None:
    say(json.dumps(data, indent=1))
