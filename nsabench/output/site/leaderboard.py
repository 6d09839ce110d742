"""Leaderboards: of an op on a machine, every implementation that was right, the fastest first, and
the others with what was wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nsabench.assessment.statistics import geometric_mean
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Direction, Mode, Role, Status


@dataclass(frozen=True)
class Entry:
    """An implementation. Ratios are its time over that of the fastest right one of the case: the
    geometric mean, the least and the greatest; None where it was not timed."""

    implementation: str
    role: str
    cases: int
    right: int
    mean: float | None
    least: float | None
    greatest: float | None
    fastest: int  # cases in which nothing right was faster
    wrong: str = ""  # what was, most frequent first; empty where nothing was


@dataclass(frozen=True)
class Leaderboard:
    """Of one op, direction and mode on one GPU with one set of versions, from the latest run."""

    op: str
    direction: str
    mode: str
    device: str
    versions: str
    run_id: str
    entries: list[Entry]

    @property
    def title(self) -> str:
        more = [self.direction] if self.direction != Direction.FORWARD else []
        more += [self.mode] if self.mode == Mode.GRAPH else []
        return " ".join([self.op, *more])


def versions(record: Record) -> str:
    """What decides a time beside the device, on one line."""
    said = {"torch": record.torch, "Triton": record.triton, "CUDA": record.cuda}
    return ", ".join(f"{name} {value}" for name, value in said.items() if value)


def leaderboards(runs: Iterable[tuple[str, Sequence[Record]]]) -> list[Leaderboard]:
    """runs: id and records of each, the latest first; of what several measured, the latest says."""
    boards: dict[tuple[str, str, str, str, str], Leaderboard] = {}
    for run_id, records in runs:
        groups: dict[tuple[str, str, str, str, str], list[Record]] = {}
        for r in records:
            if r.role is not Role.CONTROL:
                key = (r.op, str(r.direction), str(r.mode), r.gpu_name or "a CPU", versions(r))
                groups.setdefault(key, []).append(r)
        for key, rows in groups.items():
            if key not in boards:
                boards[key] = Leaderboard(*key, run_id, _entries(rows))
    return [boards[key] for key in sorted(boards)]


def _entries(records: Sequence[Record]) -> list[Entry]:
    best: dict[str, float] = {}
    for r in records:
        if r.status is Status.OK and r.median_ms:
            best[r.case_id] = min(r.median_ms, best.get(r.case_id, r.median_ms))
    by_name: dict[str, list[Record]] = {}
    for r in records:
        by_name.setdefault(r.implementation, []).append(r)
    entries = [_entry(name, rows, best) for name, rows in by_name.items()]
    # One that is never right is behind all others; then who was timed, the fastest first.
    return sorted(entries, key=lambda e: (bool(e.wrong), e.mean is None, e.mean or 0, -e.right))


def _entry(name: str, rows: Sequence[Record], best: dict[str, float]) -> Entry:
    right = [r for r in rows if r.status is Status.OK]
    ratios = [r.median_ms / best[r.case_id] for r in right if r.median_ms]
    faults = Counter(
        f"{r.status}: {r.diagnosis or r.reason}" for r in rows if r.status not in BENIGN
    )
    return Entry(
        name,
        rows[0].role,
        len(rows),
        len(right),
        geometric_mean(ratios),
        min(ratios, default=None),
        max(ratios, default=None),
        sum(ratio == 1 for ratio in ratios),
        "; ".join(f"{text} ({n} of {len(rows)})" for text, n in faults.most_common(2)),
    )
