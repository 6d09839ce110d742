"""Leaderboards: of an op on a machine in a regime, every implementation that was right, the fastest
first, the others with what was wrong, and apart from them what a model could run instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nsabench.assessment.caution import beside, tally
from nsabench.assessment.statistics import geometric_mean
from nsabench.machine.environment.pairs import belongs
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Direction, Regime, Role, Status
from nsabench.output.site import claimed
from nsabench.output.site.claimed import Claimed
from nsabench.packages.catalogue import CATALOGUE

IN = {
    Regime.DEVICE: "on the device",
    Regime.QUEUE: "called from Python in a queue",
    Regime.GRAPH: "in graphs",
}


@dataclass(frozen=True)
class Entry:
    """An implementation. Ratios are its time over that of the fastest right rival of the case: the
    geometric mean, the least and the greatest; None where it was not timed in the regime.

    library: what it calls, with version and licence. computes: of an alternative, its own op.
    """

    implementation: str
    role: str
    cases: int
    right: int
    mean: float | None
    least: float | None
    greatest: float | None
    fastest: int  # cases in which no right rival was faster
    wrong: str = ""  # what was, most frequent first; empty where nothing was
    library: str = ""
    computes: str = ""
    caution: str = ""  # of a candidate: in how many of its cases it has no specialised rival


@dataclass(frozen=True)
class Leaderboard:
    """Of one op and direction in one regime on one GPU with one set of versions, from one run.
    alternatives: what computes another function, beside the entries and not among them."""

    op: str
    direction: str
    regime: Regime
    device: str
    versions: str
    run_id: str
    entries: list[Entry]
    alternatives: list[Entry]
    claims: list[Claimed]

    @property
    def title(self) -> str:
        """Its op and regime: no board is of a time without one."""
        more = [self.direction] if self.direction != Direction.FORWARD else []
        return " ".join([self.op, *more, IN[self.regime]])

    @property
    def first(self) -> bool:
        """Whether it is of the regime of the samples, where what was wrong is said."""
        return self.regime is not Regime.QUEUE


def versions(record: Record) -> str:
    """What decides a time beside the device, on one line, and whether torch and Triton are no
    pair."""
    said = {"torch": record.torch, "Triton": record.triton, "CUDA": record.cuda}
    line = ", ".join(f"{name} {value}" for name, value in said.items() if value)
    other = belongs(record.torch, record.triton)
    return f"{line} ({other})" if other else line


def is_paired(record: Record) -> bool:
    """Whether its torch and its Triton belong together."""
    return not belongs(record.torch, record.triton)


T = TypeVar("T")
_Key = tuple[str, str, Regime, str, str]
_Measured = tuple[str, list[Record]]
_KNOWN = {one.name for one in CATALOGUE}


def _at_least_half(measured: Sequence[T], size: Callable[[T], int]) -> list[T]:
    """Those that are at least half as large as the largest, in their order."""
    least = max(map(size, measured)) / 2
    return [one for one in measured if size(one) >= least]


def telling(measured: Sequence[T], size: Callable[[T], int]) -> T:
    """The first of those that are at least half as large as the largest: a few cases that were
    measured again say nothing of all the others.

    measured: the latest first.
    """
    return _at_least_half(measured, size)[0]


def leaderboards(runs: Iterable[tuple[str, Sequence[Record]]]) -> list[Leaderboard]:
    """runs: id and records of each, the latest first. Which of several says is told by `telling`,
    of those with at least half as many public libraries as where most were right: who is the
    fastest is not told by a run beside none of them, however large it is. Software that is no pair
    comes last."""
    measured: dict[_Key, list[_Measured]] = {}
    for run_id, records in runs:
        groups: dict[_Key, list[Record]] = {}
        for r in records:
            if r.role is not Role.CONTROL:
                of = (r.op, str(r.direction))
                on = (r.gpu_name or "a CPU", versions(r))
                groups.setdefault((*of, r.regime, *on), []).append(r)
        for (op, direction, regime, gpu, line), rows in groups.items():
            for one in _regimes(regime, rows):
                measured.setdefault((op, direction, one, gpu, line), []).append((run_id, rows))
    told = {
        key: telling(_beside_most(several, key[2]), lambda one: len({r.case_id for r in one[1]}))
        for key, several in measured.items()
    }
    order = sorted(told, key=lambda key: _place(key, told[key][1][0]))
    return [_board(key, *told[key]) for key in order]


def _beside_most(measured: Sequence[_Measured], regime: Regime) -> list[_Measured]:
    """Those with at least half as many public libraries as where most were timed and right."""

    def libraries(one: _Measured) -> int:
        rivals = [r for r in one[1] if r.role is Role.BASELINE and r.status is Status.OK]
        return len({r.package for r in rivals if r.timed_in(regime)} & _KNOWN)

    return _at_least_half(measured, libraries)


def _place(key: _Key, record: Record) -> tuple[Any, ...]:
    op, direction, regime, gpu, line = key
    return op, direction, gpu, not is_paired(record), line, list(Regime).index(regime)


def _regimes(of_samples: Regime, rows: Sequence[Record]) -> Iterable[Regime]:
    yield of_samples
    if any(r.timed_in(Regime.QUEUE) for r in rows):
        yield Regime.QUEUE


def _board(key: _Key, run_id: str, rows: Sequence[Record]) -> Leaderboard:
    op, direction, regime, gpu, line = key
    rivals = [r for r in rows if r.role is not Role.ALTERNATIVE]
    best: dict[str, float] = {}
    for r in rivals:
        time = r.timed_in(regime)
        if r.status is Status.OK and time:
            best[r.case_id] = min(time, best.get(r.case_id, time))
    others = [r for r in rows if r.role is Role.ALTERNATIVE]
    return Leaderboard(
        op,
        direction,
        regime,
        gpu,
        line,
        run_id,
        _entries(rivals, best, regime),
        _entries(others, best, regime),
        claimed.beside(op, direction, rows) if regime is Regime.DEVICE else [],
    )


def _entries(records: Sequence[Record], best: dict[str, float], regime: Regime) -> list[Entry]:
    by_name: dict[str, list[Record]] = {}
    for r in records:
        by_name.setdefault(r.implementation, []).append(r)
    entries = [_entry(name, rows, best, regime) for name, rows in by_name.items()]
    most = len({r.case_id for r in records})
    # One that is ever wrong is behind all others, then who was not timed, then who was in few
    # cases: its mean is of other cases. Of the rest the fastest is first.
    return sorted(
        entries,
        key=lambda e: (bool(e.wrong), e.mean is None, 2 * e.right < most, e.mean or 0, -e.right),
    )


def _entry(name: str, rows: Sequence[Record], best: dict[str, float], regime: Regime) -> Entry:
    right = [r for r in rows if r.status is Status.OK]
    ratios = [
        time / best[r.case_id] for r in right if (time := r.timed_in(regime)) and r.case_id in best
    ]
    faults = Counter(
        f"{r.status}: {r.diagnosis or r.reason}" for r in rows if r.status not in BENIGN
    )
    first = rows[0]
    return Entry(
        name,
        first.role,
        len(rows),
        len(right),
        geometric_mean(ratios),
        min(ratios, default=None),
        max(ratios, default=None),
        sum(ratio <= 1 for ratio in ratios),
        "; ".join(f"{text} ({n} of {len(rows)})" for text, n in faults.most_common(2)),
        ", ".join(x for x in (first.package, first.package_version, first.licence) if x),
        first.computes,
        tally(beside(r, regime) for r in right),
    )
