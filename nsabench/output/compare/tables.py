"""A comparison in a terminal: what changed first, then how much faster or slower."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from nsabench.output.compare import over_many, view
from nsabench.output.compare.comparison import Comparison
from nsabench.output.compare.vocabulary import Change
from nsabench.output.table import Table, on_terminal
from nsabench.text import shown

STYLES: dict[str, str] = {
    Change.BROKE: "bold red",
    Change.MENDED: "green",
    Change.OTHER: "yellow",
}


def render(comparison: Comparison) -> Group:
    return Group(*_parts(comparison))


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    for side in comparison.sides:
        if side.objection:
            yield Text(shown(side.objection), "bold red")
    for line in comparison.disagreements:
        yield Text(shown(f"left out: {line}"), "yellow")
    if len(comparison.later) > 1:
        for breakage in over_many.breakages(comparison):
            yield Text(shown(breakage.sentence), "bold red")
    for table in _tables(comparison):
        yield from on_terminal(table, STYLES)


def _tables(comparison: Comparison) -> Iterator[Table]:
    later = range(len(comparison.later))
    for number in later:
        yield view.changes(comparison, number)
        yield view.slower(comparison, number)
    if len(later) > 1:
        yield view.over_all(comparison, differing=True)
    if comparison.payments:
        yield view.pays(comparison)
    if comparison.candidates:
        yield view.matrix(comparison)
    for number in later:
        yield view.means(comparison, number)
