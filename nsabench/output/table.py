"""Tables as data. The terminal, Markdown and pages (`templates/table.html.j2`) render the same one.

A cell is a text of the run, unless `Name`, `Tag` or `Ours` says what it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich import table as rich_table
from rich.console import RenderableType
from rich.text import Text

from nsabench.text import code, markdown, shown

# Rows of a long table; the JSON holds all.
MOST = 60
MOST_ON_TERMINAL = 20


class Name(str):
    kind = "name"


class Tag(str):
    """A word of a vocabulary, which is shown in its colour."""

    kind = "tag"


class Ours(str):
    """A text without any word of the run, such as a number."""

    kind = "ours"


@dataclass(frozen=True)
class Table:
    """numbers: the columns to align at the right. nothing: the text for a table without rows.
    is_long: whether the terminal, Markdown and pages show the first rows alone."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[str] = ()
    nothing: str = ""
    is_long: bool = False


def number(value: float | None, form: str, nothing: str = "–") -> str:
    return Ours(nothing if value is None else format(value, form))


def as_markdown(table: Table) -> str:
    if not table.rows and table.nothing:
        return table.nothing
    rows = table.rows[:MOST] if table.is_long else table.rows
    lines = [_line(table.columns), "|" + "---|" * len(table.columns), *map(_line, rows)]
    if len(rows) < len(table.rows):
        left = len(table.rows) - MOST
        lines.append(f"\nand {left} more: `nsabench compare --json` has them all.")
    return "\n".join(lines)


def _line(row: Sequence[str]) -> str:
    return f"| {' | '.join(map(_in_markdown, row))} |"


def _in_markdown(cell: str) -> str:
    if isinstance(cell, Ours):
        return cell
    return code(cell) if isinstance(cell, Name) else markdown(cell)


def on_terminal(table: Table, styles: Mapping[str, str]) -> Iterator[RenderableType]:
    if not table.rows:
        if table.nothing:
            yield Text(shown(f"{table.title}: {table.nothing}"))
        return
    title = Text(shown(table.title))
    made = rich_table.Table(title=title, title_justify="left", header_style="bold")
    for name in table.columns:
        made.add_column(Text(shown(name)), justify="right" if name in table.numbers else "left")
    rows = table.rows[:MOST_ON_TERMINAL] if table.is_long else table.rows
    for row in rows:
        made.add_row(*(Text(shown(cell), styles.get(cell, "")) for cell in row))
    yield made
    if len(rows) < len(table.rows):
        yield Text(f"... and {len(table.rows) - len(rows)} more", "dim")
