"""The comparisons of a site: pages that `compare` and `versions` made, and where they lie in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path

from nsabench import limits, reading
from nsabench.errors import UsageError
from nsabench.output.compare import Side, compare, page, read
from nsabench.output.report.files import replace

NAME = "comparison.html"  # as `nsabench versions` calls it, beside its runs
COMPARISONS = "comparisons"  # a folder of a site
_TITLE = re.compile(r"<title>([^<]*)</title>")
_OURS = "nsabench · comparison with "


@dataclass(frozen=True)
class Linked:
    """A page of a comparison. path: from the first page of the site."""

    title: str
    path: str


Page = tuple[str, str]  # its title and its text


def pages(given: Sequence[Path]) -> list[Page]:
    """Those that are given. Raises `UsageError` for a file that is no page of a comparison."""
    return [(_title(path, text), text) for path in given for text in [_read(path)]]


def write(given: Sequence[Page], places: Sequence[str], folder: Path) -> list[Linked]:
    """Put them into the site: those that are given as they are, and one of the runs beside which
    `nsabench versions` left one, made anew, since what lies about could be anybody's."""
    linked = []
    for number, (title, text) in enumerate([*given, *_found(places)], 1):
        path = f"{COMPARISONS}/{number}.html"
        replace(folder / path, text)
        linked.append(Linked(title, path))
    return linked


def _read(path: Path) -> str:
    try:
        return reading.read(path, limits.COMPARISON).decode()
    except (OSError, UnicodeDecodeError, reading.OutOfBounds) as error:
        raise _refused(path) from error


def _title(path: Path, text: str) -> str:
    found = _TITLE.search(text)
    title = unescape(found[1]) if found else ""
    if not title.startswith(_OURS):
        raise _refused(path)
    return title.removeprefix("nsabench · ")


def _refused(path: Path) -> UsageError:
    return UsageError(
        f"{path} is no page of a comparison", f"make one: nsabench compare RUN RUN --html {NAME}."
    )


def _found(places: Sequence[str]) -> Iterator[Page]:
    """Title and text of a comparison of the runs that lie together beside one."""
    together: dict[Path, list[Path]] = {}
    for place in map(Path, places):
        beside = place.resolve().parent
        if (place / "plan.json").is_file() and (beside / NAME).is_file():
            together.setdefault(beside, []).append(place)
    for beside, runs in together.items():
        if len(runs) < 2:
            continue
        try:
            comparison = compare(_ordered(read(runs), beside / NAME))
        except UsageError:  # they have nothing in common any more: there is nothing to link
            continue
        names = " and ".join(side.name for side in comparison.later)
        yield f"{names} against {comparison.first.name}", page.render(comparison)


def _ordered(sides: Sequence[Side], left: Path) -> list[Side]:
    """First the run that the page that lies there is against, if it names one of them, so that a
    gain there is none the other way here; the others in the order in which they were planned."""
    try:
        first = _title(left, _read(left)).removeprefix("comparison with ")
    except UsageError:  # it is no page of ours
        first = ""
    return sorted(sides, key=lambda side: (side.name != first, side.plan.created, side.name))
