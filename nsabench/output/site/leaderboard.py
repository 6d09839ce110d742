"""Leaderboards of an op on a machine in a regime: every right implementation, the fastest first.
Implementations that were wrong, and alternatives, are listed apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nsabench.machine.environment.pairs import belongs
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Direction, Regime, Role, Status
from nsabench.output import grouped
from nsabench.output.standing import versions
from nsabench.packages.catalogue import CATALOGUE
from nsabench.verdicts.caution import beside, tally
from nsabench.verdicts.statistics import geometric_mean

IN = {
    Regime.DEVICE: "on the device",
    Regime.QUEUE: "called from Python in a queue",
    Regime.GRAPH: "in graphs",
}


@dataclass(frozen=True)
class Entry:
    """An implementation. Ratios are its time over the time of the fastest right rival of the case;
    None if it was not timed in the regime."""

    implementation: str
    role: str
    cases: int
    right: int
    mean: float | None
    least: float | None
    greatest: float | None
    fastest: int  # cases in which no right rival was faster
    wrong: str = ""  # what was wrong, most frequent first
    library: str = ""  # that it calls, with version and licence
    computes: str = ""  # of an alternative: its own op
    caution: str = ""  # of a candidate: in how many of its cases it has no specialised rival


@dataclass(frozen=True)
class Leaderboard:
    """One op and direction in one regime on one GPU with one set of versions, from one run.
    alternatives: implementations that compute another function."""

    op: str
    direction: str
    regime: Regime
    device: str
    versions: str
    paired: bool  # whether torch and Triton belong together
    run_id: str
    entries: list[Entry]
    alternatives: list[Entry]

    @property
    def title(self) -> str:
        """Its op and regime: no board is of a time without one."""
        more = [self.direction] if self.direction != Direction.FORWARD else []
        return " ".join([self.op, *more, IN[self.regime]])


def software(record: Record) -> str:
    line, other = ", ".join(versions(record)), belongs(record.torch, record.triton)
    return f"{line} ({other})" if other else line


def is_paired(record: Record) -> bool:
    return not belongs(record.torch, record.triton)


T = TypeVar("T")
_Key = tuple[str, str, str, str, Regime]  # op, direction, GPU, versions
_Measured = tuple[str, list[Record]]  # the id of a run, and its records
_KNOWN = {package.name for package in CATALOGUE}


def at_least_half(measured: Sequence[T], size: Callable[[T], int]) -> list[T]:
    least = max(map(size, measured)) / 2
    return [run for run in measured if size(run) >= least]


def leaderboards(runs: Iterable[tuple[str, Sequence[Record]]]) -> list[Leaderboard]:
    """Return the boards; unpaired software comes last. runs: the latest first.

    A board is from the latest run that has at least half of the cases and public libraries of the
    runs with the most: a few cases that were measured again say nothing of all the others.
    """
    measured: dict[_Key, list[_Measured]] = {}
    for run_id, records in runs:
        rivals = (r for r in records if r.role is not Role.CONTROL)
        for key, rows in grouped(rivals, _place).items():
            queue = [Regime.QUEUE] if any(r.timed_in(Regime.QUEUE) for r in rows) else []
            for regime in (key[-1], *queue):
                measured.setdefault((*key[:-1], regime), []).append((run_id, rows))
    boards = [
        _board(key, *at_least_half(_beside_most(several, key[-1]), _cases)[0])
        for key, several in measured.items()
    ]
    return sorted(boards, key=_order)


def _place(record: Record) -> _Key:
    gpu = record.gpu_name or "a CPU"
    return record.op, str(record.direction), gpu, software(record), record.regime


def _cases(measured: _Measured) -> int:
    return len({r.case_id for r in measured[1]})


def _beside_most(measured: Sequence[_Measured], regime: Regime) -> list[_Measured]:
    """Runs with at least half as many public libraries as the run with the most."""

    def libraries(run: _Measured) -> int:
        rivals = [r for r in run[1] if r.role is Role.BASELINE and r.status is Status.OK]
        return len({r.package for r in rivals if r.timed_in(regime)} & _KNOWN)

    return at_least_half(measured, libraries)


def _order(board: Leaderboard) -> tuple[Any, ...]:
    regime = list(Regime).index(board.regime)
    return board.op, board.direction, board.device, not board.paired, board.versions, regime


def _board(key: _Key, run_id: str, rows: Sequence[Record]) -> Leaderboard:
    op, direction, gpu, line, regime = key
    rivals = [r for r in rows if r.role is not Role.ALTERNATIVE]
    best: dict[str, float] = {}
    for r in rivals:
        time = r.timed_in(regime)
        if r.status is Status.OK and time:
            best[r.case_id] = min(time, best.get(r.case_id, time))
    alternatives = [r for r in rows if r.role is Role.ALTERNATIVE]
    return Leaderboard(
        op,
        direction,
        regime,
        gpu,
        line,
        is_paired(rows[0]),
        run_id,
        _entries(rivals, best, regime),
        _entries(alternatives, best, regime),
    )


def _entries(records: Sequence[Record], best: Mapping[str, float], regime: Regime) -> list[Entry]:
    by_name = grouped(records, lambda r: r.implementation)
    entries = [_entry(name, rows, best, regime) for name, rows in by_name.items()]
    most = len({r.case_id for r in records})
    # Implementations that are ever wrong come last, before them those that were not timed, and
    # before these those that were right in few cases: their mean is of other cases.
    return sorted(
        entries,
        key=lambda e: (bool(e.wrong), e.mean is None, 2 * e.right < most, e.mean or 0, -e.right),
    )


def _entry(name: str, rows: Sequence[Record], best: Mapping[str, float], regime: Regime) -> Entry:
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
