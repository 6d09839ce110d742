"""Leaderboards of an op on a machine in a regime, the fastest implementation first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nsabench.machine.environment.pairs import describe_mismatch
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Direction, Regime, Role, Status
from nsabench.output import grouped
from nsabench.output.document import Name, Table, number
from nsabench.output.standing import versions
from nsabench.verdicts.caution import beside, tally
from nsabench.verdicts.statistics import geometric_mean

IN = {
    Regime.DEVICE: "on the device",
    Regime.QUEUE: "called from Python in a queue",
    Regime.GRAPH: "in graphs",
}


@dataclass(frozen=True)
class Entry:
    """An implementation. Ratios are its time over the time of the fastest right rival."""

    implementation: str
    role: str
    cases: int
    right: int
    mean: float | None
    least: float | None
    greatest: float | None
    fastest: int  # Cases without a faster right rival.
    wrong: str = ""  # Its failures, the most frequent first.
    library: str = ""
    computes: str = ""  # The op of an alternative.
    caution: str = ""


@dataclass(frozen=True)
class Leaderboard:
    """Entries of one run. alternatives: implementations that compute another function."""

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
        more = [self.direction] if self.direction != Direction.FORWARD else []
        return " ".join([self.op, *more, IN[self.regime]])

    @property
    def table(self) -> Table:
        """The entries that are right in every case that they ran."""
        rows = [
            (
                Name(entry.implementation),
                ", ".join(filter(None, (entry.role, entry.computes))),
                entry.library or "–",
                number(entry.mean, ".2f"),
                f"{number(entry.least, '.2f')} to {number(entry.greatest, '.2f')}",
                "–" if entry.computes else str(entry.fastest),
                f"{entry.right} of {entry.cases}",
                entry.caution or "–",
            )
            for entry in (*self.entries, *self.alternatives)
            if entry.right and not entry.wrong
        ]
        numbers = (f"time, {self.regime}", "least to greatest", "fastest in", "right in")
        columns = ("implementation", "role", "library", *numbers, "caution")
        nothing = "Nothing was right in every case it ran."
        return Table(self.title, columns, rows, numbers, nothing)


def software(record: Record) -> str:
    line, other = ", ".join(versions(record)), describe_mismatch(record.torch, record.triton)
    return f"{line} ({other})" if other else line


def is_paired(record: Record) -> bool:
    return not describe_mismatch(record.torch, record.triton)


T = TypeVar("T")
_Key = tuple[str, str, str, str, Regime]  # op, direction, GPU, versions
_Measured = tuple[str, list[Record]]  # the id of a run, and its records


def at_least_half(measured: Sequence[T], size: Callable[[T], int]) -> list[T]:
    least = max(map(size, measured)) / 2
    return [run for run in measured if size(run) >= least]


def leaderboards(runs: Iterable[tuple[str, Sequence[Record]]]) -> list[Leaderboard]:
    """Return the boards, unpaired software last. runs: the latest first.

    A board is from the latest run with at least half of the most cases and public libraries, so
    that another measurement of a few cases does not replace it.
    """
    measured: dict[_Key, list[_Measured]] = {}
    for run_id, records in runs:
        rivals = (r for r in records if r.role is not Role.CONTROL)
        for key, rows in grouped(rivals, _find_place).items():
            queue = [Regime.QUEUE] if any(r.timed_in(Regime.QUEUE) for r in rows) else []
            for regime in (key[-1], *queue):
                measured.setdefault((*key[:-1], regime), []).append((run_id, rows))
    boards = [
        _build_board(key, *at_least_half(_filter_by_libraries(several, key[-1]), _count_cases)[0])
        for key, several in measured.items()
    ]
    return sorted(boards, key=_find_order)


def _find_place(record: Record) -> _Key:
    gpu = record.gpu_name or "a CPU"
    return record.op, str(record.direction), gpu, software(record), record.regime


def _count_cases(measured: _Measured) -> int:
    return len({r.case_id for r in measured[1]})


def _filter_by_libraries(measured: Sequence[_Measured], regime: Regime) -> list[_Measured]:
    """Return the runs with at least half as many public libraries as the run with the most."""

    def libraries(run: _Measured) -> int:
        rivals = [r for r in run[1] if r.role is Role.BASELINE and r.status is Status.OK]
        return len({r.package for r in rivals if r.package and r.timed_in(regime)})

    return at_least_half(measured, libraries)


def _find_order(board: Leaderboard) -> tuple[Any, ...]:
    regime = list(Regime).index(board.regime)
    return board.op, board.direction, board.device, not board.paired, board.versions, regime


def _build_board(key: _Key, run_id: str, rows: Sequence[Record]) -> Leaderboard:
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
        _build_entries(rivals, best, regime),
        _build_entries(alternatives, best, regime),
    )


def _build_entries(
    records: Sequence[Record], best: Mapping[str, float], regime: Regime
) -> list[Entry]:
    by_name = grouped(records, lambda r: r.implementation)
    entries = [_build_entry(name, rows, best, regime) for name, rows in by_name.items()]
    most = len({r.case_id for r in records})
    # The last are, in this order: right in few cases, not timed, wrong in a case.
    return sorted(
        entries,
        key=lambda e: (bool(e.wrong), e.mean is None, 2 * e.right < most, e.mean or 0, -e.right),
    )


def _build_entry(
    name: str, rows: Sequence[Record], best: Mapping[str, float], regime: Regime
) -> Entry:
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
