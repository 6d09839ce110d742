"""The comparisons of a site: pages that `compare` and `versions` made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path

from nsabench import limits, reading
from nsabench.errors import UsageError
from nsabench.output import grouped
from nsabench.output.compare import Side, compare, page, read
from nsabench.output.report.files import replace

NAME = "comparison.html"  # as `nsabench versions` calls it, beside its runs
COMPARISONS = "comparisons"  # a folder of a site
_TITLE = re.compile(r"<title>nsabench · comparison with ([^<]*)</title>")

Page = tuple[str, str]  # its title and its text


def pages(given: Sequence[Path]) -> list[Page]:
    """Read the given pages. Raises `UsageError` for a file that is not a comparison."""
    return [_read(path) for path in given]


def write(given: Sequence[Page], places: Sequence[str], folder: Path) -> list[Page]:
    """Write the comparisons into the site, and return the title and path of each. The comparison of
    runs that have one beside them is made anew, since nothing shows who made that page."""
    linked = []
    for number, (title, text) in enumerate([*given, *_beside_runs(places)], 1):
        path = f"{COMPARISONS}/{number}.html"
        replace(folder / path, text)
        linked.append((title, path))
    return linked


def _read(path: Path) -> Page:
    try:
        text = reading.read(path, limits.COMPARISON).decode()
    except (OSError, UnicodeDecodeError, reading.OutOfBounds):
        text = ""
    found = _TITLE.search(text)
    if found is None:
        raise UsageError(
            f"{path} is no page of a comparison",
            f"make one: nsabench compare RUN RUN --html {NAME}.",
        )
    return f"comparison with {unescape(found[1])}", text


def _beside_runs(places: Sequence[str]) -> Iterator[Page]:
    """Yield a comparison of the runs that lie together beside one."""
    runs = [Path(place) for place in places if (Path(place) / "plan.json").is_file()]
    for beside, together in grouped(runs, lambda run: run.resolve().parent).items():
        if len(together) < 2 or not (beside / NAME).is_file():
            continue
        try:
            comparison = compare(_ordered(read(together), beside / NAME))
        except UsageError:  # they have nothing in common any more
            continue
        names = " and ".join(side.name for side in comparison.later)
        yield f"{names} against {comparison.first.name}", page.render(comparison)


def _ordered(sides: Sequence[Side], left: Path) -> list[Side]:
    """Put the run first that the page `left` is against, so that a gain there is a gain here; then
    the others in the order in which they were planned."""
    try:
        first = _read(left)[0].removeprefix("comparison with ")
    except UsageError:  # nsabench did not make it
        first = ""
    return sorted(sides, key=lambda side: (side.name != first, side.plan.created, side.name))
