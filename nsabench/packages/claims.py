"""The speeds that libraries state themselves. A site shows them beside what was measured."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from importlib.resources import files


@dataclass(frozen=True)
class Claim:
    """A statement of a library about one shape, or a summary over many.

    shape: sizes by the names of the op; empty in a summary. said: the statement in neutral words.
    site, made: its address and date.
    """

    package: str
    op: str
    direction: str
    shape: Mapping[str, int]
    said: str
    site: str
    made: date


def _read() -> Iterator[Claim]:
    text = files("nsabench.packages").joinpath("claims.csv").read_text()
    for row in csv.DictReader(text.splitlines()):
        sizes = (size.split("=") for size in row.pop("shape").split())
        made = date.fromisoformat(row.pop("made"))
        yield Claim(shape={name: int(n) for name, n in sizes}, made=made, **row)


CLAIMS = tuple(_read())


def of(op: str, direction: str) -> list[Claim]:
    """Return the claims about an op in a direction."""
    return [c for c in CLAIMS if (c.op, c.direction) == (op, direction)]
