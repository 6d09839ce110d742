"""Print the output of commands. Text from other people cannot control the terminal."""

import io
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from nsabench.text import shown

if TYPE_CHECKING:
    from pydantic import BaseModel  # not imported at run time, which would slow down `--help`


class _LossyStream(io.FileIO):
    """A standard stream that drops output once it cannot be written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            if self.fileno() == sys.stdout.fileno():
                why = f"standard output cannot be written: {error.strerror}"
                say(f"nsabench: {why}. The run goes on without it.", err=True)
            return len(data)


def outlive_readers() -> None:
    """Let a command finish its work if standard output or error cannot be written any more."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        raw = io.BufferedWriter(_LossyStream(stream.fileno(), "wb", closefd=False))
        how = {"encoding": stream.encoding, "errors": stream.errors, "line_buffering": True}
        setattr(sys, name, io.TextIOWrapper(raw, **how))


def open_closed_streams() -> None:
    """Open the null device for closed standard streams, before a file gets their descriptors."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def say(text: object, *, err: bool = False, nl: bool = True) -> None:
    click.echo(shown(text, lines=True), err=err, nl=nl)


def say_json(data: object) -> None:
    say(json.dumps(data, indent=1, default=str))


def say_document(document: "BaseModel") -> None:
    say_json(document.model_dump(mode="json"))


def say_columns(rows: Sequence[Sequence[object]]) -> None:
    """Print rows in columns, with a dash for None, 0 and an empty text."""
    texts = [
        [" ".join(map(str, v)) if isinstance(v, list | tuple) else str(v or "-") for v in row]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        say("  ".join(f"{t:{w}}" for t, w in zip(row, widths, strict=True)).rstrip())
