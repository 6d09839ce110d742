"""Define tables and sentences for the terminal, Markdown and pages (`templates/table.html.j2`).

A plain string in a cell is text from other people. The subclasses of `str` below say how a cell is
shown. Only `Ours` is not escaped.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from rich import table as rich_table
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.text import Text

from nsabench.text import code, markdown, shown

# The most rows that are shown of a long table. The JSON has all rows.
MOST = 60
MOST_ON_TERMINAL = 20
# Styles of words on a terminal. All other words are shown as failures.
STYLES = {
    "ok": "green",
    "skipped": "dim",
    "unsupported": "dim",
    "faster": "bold green",
    "slower": "red",
    "same": "cyan",
    "inconclusive": "yellow",
    "unproven": "yellow",
    "note": "dim",
    "mended": "green",
    "other": "yellow",
}
FAILED = "bold red"


class Name(str):
    kind = "name"


class Tag(str):
    """A text in the colour of `word`, a word of a vocabulary. By default, the text is the word."""

    kind = "tag"
    word: str

    def __new__(cls, text: str, word: str = "") -> Self:
        tag = super().__new__(cls, text)
        tag.word = word or text
        return tag


class Strong(str):
    kind = "strong"


class Link(str):
    kind = "link"
    href: str

    def __new__(cls, text: str, href: str) -> Self:
        link = super().__new__(cls, text)
        link.href = href
        return link


class Ours(str):
    """A text of nsabench itself, such as a number."""

    kind = "ours"


@dataclass(frozen=True)
class Sentence:
    """A sentence with a style of rich. A bold sentence is also bold in Markdown."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class TableBlock:
    """A table of texts, with `nothing` for no rows. `numbers` names the columns of numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[str] = ()
    nothing: str = ""
    is_long: bool = False


Block = Sentence | TableBlock


def number(value: float | None, form: str, nothing: str = "–") -> str:
    return Ours(nothing if value is None else format(value, form))


def as_markdown(block: Block) -> str:
    if isinstance(block, Sentence):
        text = markdown(block.text)
        return f"**{text}**" if "bold" in block.style else text
    return f"## {markdown(block.title)}\n\n{table_as_markdown(block)}"


def table_as_markdown(table: TableBlock) -> str:
    if not table.rows and table.nothing:
        return table.nothing
    rows = table.rows[:MOST] if table.is_long else table.rows
    lines = [_format_row(table.columns), "|" + "---|" * len(table.columns), *map(_format_row, rows)]
    if len(rows) < len(table.rows):
        lines.append(f"\nand {len(table.rows) - MOST} more.")
    return "\n".join(lines)


def _format_row(row: Sequence[str]) -> str:
    return f"| {' | '.join(map(_format_cell, row))} |"


def _format_cell(cell: str) -> str:
    if isinstance(cell, Ours):
        return cell
    return code(cell) if isinstance(cell, Name) else markdown(cell)


def on_terminal(blocks: Iterable[Block]) -> Iterator[RenderableType]:
    for block in blocks:
        if isinstance(block, Sentence):
            yield Text(shown(block.text), block.style)
        elif block.rows:
            yield from _build_rich_table(block)
        elif block.nothing:
            yield Text(shown(f"{block.title}: {block.nothing}"))


def _build_rich_table(table: TableBlock) -> Iterator[RenderableType]:
    made = rich_table.Table(
        title=Text(shown(table.title)) if table.title else None,
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for place, name in enumerate(table.columns):
        is_number = name in table.numbers
        # Sentences may be wrapped, but numbers, names and verdicts may not.
        made.add_column(
            Text(shown(name).replace(" ", "\n", 1) if is_number else shown(name)),
            justify="right" if is_number else "left",
            no_wrap=is_number or all(isinstance(row[place], Name | Tag) for row in table.rows),
            overflow="fold",
        )
    rows = table.rows[:MOST_ON_TERMINAL] if table.is_long else table.rows
    for row in rows:
        made.add_row(*map(_style_cell, row))
    yield made
    if len(rows) < len(table.rows):
        yield Text(f"... and {len(table.rows) - len(rows)} more", "dim")


def _style_cell(cell: str) -> Text:
    if isinstance(cell, Tag):
        return Text(shown(cell, lines=True), STYLES.get(cell.word, FAILED))
    return Text(shown(cell))
