"""Make leaderboards: an op's implementations on a machine in a regime, the fastest first."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nsabench import labels
from nsabench.machine.environment.pairs import describe_mismatch
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Direction, Regime, Role, Status
from nsabench.output import grouped
from nsabench.output.document import Name, TableBlock, number
from nsabench.output.standing import versions
from nsabench.verdicts.break_even import REGIME_NAMES
from nsabench.verdicts.statistics import geometric_mean


class LeaderboardKey(NamedTuple):
    op: str
    direction: Direction
    machine: str  # device and versions
    regime: Regime


@dataclass(frozen=True)
class Leaderboard:
    """A table of the implementations that are right in every case that they ran. `wrong` names
    those that failed in a case, and says what is wrong with each."""

    place: LeaderboardKey
    table: TableBlock
    wrong: Sequence[tuple[str, str]]


def software(record: Record) -> str:
    line, other = ", ".join(versions(record)), describe_mismatch(record.torch, record.triton)
    return f"{line} ({other})" if other else line


def is_paired(record: Record) -> bool:
    return not describe_mismatch(record.torch, record.triton)


def leaderboards(runs: Iterable[Sequence[Record]]) -> list[Leaderboard]:
    """Return leaderboards. Boards with another Triton than the one that torch pins come last.

    A leaderboard shows the run that timed the most records, or the first of several such runs. So a
    later run of a few cases does not replace a full run.
    """
    largest: dict[LeaderboardKey, list[Record]] = {}
    for records in runs:
        for place, rows in _group(records).items():
            if _count_times(rows, place) > _count_times(largest.get(place, ()), place):
                largest[place] = rows
    boards = sorted(largest.items(), key=lambda item: (not is_paired(item[1][0]), item[0]))
    return [_build_board(place, rows) for place, rows in boards]


def _group(records: Sequence[Record]) -> dict[LeaderboardKey, list[Record]]:
    groups: dict[LeaderboardKey, list[Record]] = {}
    for r in records:
        if r.role is not Role.CONTROL:
            machine = f"{r.gpu_name or 'a CPU'}, {software(r)}"
            for regime in (r.regime, Regime.QUEUE):
                groups.setdefault(LeaderboardKey(r.op, r.direction, machine, regime), []).append(r)
    return groups


def _count_times(rows: Sequence[Record], place: LeaderboardKey) -> int:
    return sum(r.timed_in(place.regime) is not None for r in rows)


def _build_board(place: LeaderboardKey, rows: Sequence[Record]) -> Leaderboard:
    best: dict[str, float] = {}
    for r in rows:
        time = r.timed_in(place.regime)
        if r.status is Status.OK and r.role is not Role.ALTERNATIVE and time:
            best[r.case_id] = min(time, best.get(r.case_id, time))
    right, wrong = [], []
    most = len({r.case_id for r in rows})
    for name, own in grouped(rows, lambda r: r.implementation).items():
        faults = Counter(
            f"{r.status}: {r.diagnosis or r.reason}" for r in own if r.status not in BENIGN
        )
        if faults:
            texts = [f"{text} ({n} of {len(own)})" for text, n in faults.most_common(2)]
            wrong.append((name, "; ".join(texts)))
        elif any(r.status is Status.OK for r in own):
            right.append(_build_entry(name, own, best, place.regime, most))
    numbers = (f"time, {place.regime}", "least to greatest", "fastest in", "right in")
    columns = ("implementation", "role", "library", *numbers, "caution")
    more = [place.direction] if place.direction != Direction.FORWARD else []
    title = " ".join([place.op, *more, REGIME_NAMES[place.regime]])
    cells = [cells for _, cells in sorted(right, key=lambda entry: entry[0])]
    nothing = "Nothing was right in every case it ran."
    return Leaderboard(place, TableBlock(title, columns, cells, numbers, nothing), wrong)


def _build_entry(
    name: str, rows: Sequence[Record], best: Mapping[str, float], regime: Regime, most: int
) -> tuple[tuple[object, ...], Sequence[str]]:
    """Return the sort key and the cells of an implementation. Alternatives come last.

    Times are ratios to the fastest right implementation. An implementation that is right in
    fewer than half of the cases comes after the others.
    """
    first = rows[0]
    right = [r for r in rows if r.status is Status.OK]
    ratios = [
        time / best[r.case_id] for r in right if (time := r.timed_in(regime)) and r.case_id in best
    ]
    mean = geometric_mean(ratios)
    is_alternative = first.role is Role.ALTERNATIVE
    library = ", ".join(x for x in (first.package, first.package_version, first.licence) if x)
    least, greatest = min(ratios, default=None), max(ratios, default=None)
    cells = (
        Name(name),
        ", ".join(filter(None, (first.role, first.computes))),
        library or "–",
        number(mean, ".2f"),
        f"{number(least, '.2f')} to {number(greatest, '.2f')}",
        "–" if is_alternative else str(sum(ratio <= 1 for ratio in ratios)),
        f"{len(right)} of {len(rows)}",
        labels.count_cautions(r.caution_in(regime) for r in right) or "–",
    )
    place = (is_alternative, mean is None, 2 * len(right) < most, mean or 0, -len(right))
    return place, cells
