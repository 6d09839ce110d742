"""The first version in which something is worse, by measuring as few of those between as may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsabench.errors import UsageError
from nsabench.machine.environment.pairs import numbers
from nsabench.output.compare import Comparison, compare, read
from nsabench.output.compare.comparison import ComparedCell
from nsabench.output.compare.vocabulary import Change, Difference
from nsabench.versions.question import Measured, Question, Show
from nsabench.versions.tritons import Triton

Key = tuple[str, str]


@dataclass(frozen=True)
class Bisected:
    """first_bad: the earliest version measured that is worse, last_good: the one before it that
    is not, among those that were to be had. skipped: versions that decide nothing, and why.
    runs: good and bad and all that were measured between, by version."""

    last_good: str
    first_bad: str
    skipped: tuple[tuple[str, str], ...]
    runs: tuple[Path, ...]
    name: str  # of a cell that is worse

    @property
    def sentence(self) -> str:
        left = "".join(f"; {version} {why}" for version, why in self.skipped)
        where = f"Triton {self.first_bad}, and not in {self.last_good}"
        return f"first worse in {where}: {self.name}{left}"


def worse(comparison: Comparison, later: int = 0) -> dict[Key, ComparedCell]:
    """The cells of those whom a gate is for that broke, or got slower, in a later run."""
    pairs = [*comparison.broken(later), *comparison.slower(later)]
    return {(cell.planned.id, cell.implementation): cell for cell, _ in pairs}


def _tells(comparison: Comparison, lost: Mapping[Key, ComparedCell]) -> bool:
    """Whether the later run says of any cell that got worse how it is there: of one that broke,
    whether it works, and of one that got slower, whether it is slower."""
    for cell in comparison.cells:
        known = lost.get((cell.planned.id, cell.implementation))
        if known is not None:
            undecided = [Difference.INVALID]
            if known.shifts[0].change is not Change.BROKE:
                undecided.append(Difference.INCONCLUSIVE)
            if cell.shifts[0].difference not in (None, *undecided):
                return True
    return False


def bisect(
    question: Question,
    good: Path,
    bad: Path,
    there: Callable[[str, str], Sequence[Triton]],
    show: Show,
    *,
    compared: Callable[[Path, Path], Comparison] | None = None,
) -> Bisected:
    """Measure versions between those of two runs until the first worse one is found.

    there: the Tritons to be had between two versions. A version is worse where a cell is that is
    worse in the bad run, too; one that gives no run, or a run that tells nothing of those cells, is
    passed over. Raises `UsageError` when nothing is worse in the bad run.
    """
    hold = compared or _compared
    whole = hold(good, bad)
    lost = worse(whole)
    if not lost:
        raise UsageError(
            f"nothing in {bad} is worse than in {good}", "name a run in which something is."
        )
    first, last = (side.versions.get("triton", "") for side in whole.sides)
    low, high = sorted((first, last), key=numbers)
    between = sorted(
        there(low, high),
        key=lambda t: numbers(t.version),
        reverse=numbers(first) > numbers(last),  # a newer one may be the good one
    )
    last_good, first_bad, cells = first, last, lost
    skipped: list[tuple[str, str]] = []
    runs = {first: good, last: bad}
    while between:
        middle = between[len(between) // 2]
        answer = question.answer(middle, show)
        if not answer.finished:
            skipped.append((middle.version, f"gave no run (exit {answer.exit_code or 0})"))
            between.remove(middle)
            continue
        runs[middle.version] = answer.folder
        held = hold(good, answer.folder)
        found = {k: c for k, c in worse(held).items() if k in lost}
        if not found and not _tells(held, lost):
            skipped.append((middle.version, "tells nothing of what is worse"))
            between.remove(middle)
            continue
        place = between.index(middle)
        if found:
            first_bad, cells, between = middle.version, found, between[:place]
        else:
            last_good, between = middle.version, between[place + 1 :]
    name = next(iter(cells.values())).name
    paths = tuple(runs[version] for version in sorted(runs, key=numbers))
    return Bisected(last_good, first_bad, tuple(skipped), paths, name)


def _compared(good: Path, other: Path) -> Comparison:
    return compare(read([good, other]), intersection=True)


def comparison_of(measured: Sequence[Measured]) -> Comparison | None:
    """The finished runs, held against the first of them; None where that is but one.

    An implementation may not exist under every version: what they have in common is compared.
    """
    folders = [one.folder for one in measured if one.finished]
    return compare(read(folders), intersection=True) if len(folders) > 1 else None
