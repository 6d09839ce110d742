"""The decision: the smallest length from which on every tested case pays.

One a GPU, op, direction, head layout and regime: dtypes, head dims, batches and packed sequences
are cases of it, and each must pay. What implements the op is not asked: in each case the fastest
valid implementation stands for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log

from nsabench import labels, ops
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Direction, Pays, Reference, Regime, Role, Status
from nsabench.verdicts.objections import (
    ON_A_CPU,
    missed,
    without_controls,
    without_queue_controls,
)

# As they are told: what calls from Python first, since that is how most models run.
REGIMES = (Regime.QUEUE, Regime.DEVICE, Regime.GRAPH)
GAIN = 1.01  # a ratio that grows by less from one length to the next does not grow


@dataclass(frozen=True)
class Cell:
    """A case: the best implementation against the best alternative. ratio: None where nothing can
    be said, for the reason `why`."""

    case_id: str
    label: str
    ladder: Hashable
    length: int
    implementation: str = ""
    alternative: str = ""
    ratio: float | None = None
    lo: float | None = None
    hi: float | None = None
    why: str = ""

    @property
    def pays(self) -> bool:
        return self.lo is not None and self.lo > 1


@dataclass(frozen=True)
class Payment:
    """From which length on an op pays. crossings: by ladder, where the ratio passes 1, read between
    the tested lengths on logarithmic axes."""

    gpu: str
    op: str
    direction: Direction
    heads: str
    regime: Regime
    axis: str
    answer: Pays
    length: int | None
    why: str
    cells: tuple[Cell, ...]

    @property
    def sentence(self) -> str:
        if self.answer is Pays.FROM:
            but = f" ({self.why})" if self.why else ""
            return f"pays from {self.axis} = {self.length} on{but}"
        if self.answer is Pays.NO:
            return f"pays at no length up to {self.axis} = {self.greatest}"
        if self.answer is Pays.NOT_FAR_ENOUGH:
            return f"does not pay up to {self.axis} = {self.greatest}: not tested far enough"
        return f"not decided: {self.why}"

    @property
    def greatest(self) -> int:
        return max(cell.length for cell in self.cells)

    @property
    def crossings(self) -> list[float]:
        """A length a ladder at which the ratio is 1."""
        found = []
        for ladder in _ladders(self.cells).values():
            for a, b in pairwise(ladder):
                if a.ratio and b.ratio and a.ratio < 1 <= b.ratio:
                    share = log(1 / a.ratio) / log(b.ratio / a.ratio)
                    found.append(a.length * (b.length / a.length) ** share)
        return found

    @property
    def used(self) -> tuple[list[str], list[str]]:
        """The implementations that stood for the op where it pays, and what they were held to."""
        told = [c for c in self.cells if self.length is None or c.length >= self.length]
        of = {c.implementation for c in told if c.implementation}
        return sorted(of), sorted({c.alternative for c in told if c.alternative})


def decide(records: Sequence[Record]) -> list[Payment]:
    """Of every op in the records that has an alternative among them; those of one run. Cases beside
    which none stands (controls have such) are asked nothing. In the queue only if a ratio to an
    alternative was recorded there."""
    with_alternatives = {(r.op, r.case_id) for r in records if r.role is Role.ALTERNATIVE}
    asked = [r for r in records if (r.op, r.case_id) in with_alternatives and r.streams == 1]
    queue = {r.op for r in asked if r.compared(Regime.QUEUE, Reference.ALTERNATIVE)}
    groups: dict[tuple[str, Direction, str, Regime], list[Record]] = {}
    for r in asked:
        groups.setdefault((r.op, r.direction, heads(r), r.regime), []).append(r)
        if r.op in queue and r.regime is Regime.DEVICE:
            groups.setdefault((r.op, r.direction, heads(r), Regime.QUEUE), []).append(r)
    order = list(dict.fromkeys(r.op for r in asked))
    keys = sorted(groups, key=lambda key: (order.index(key[0]), REGIMES.index(key[3])))
    return [_decide(key, groups[key], _against(records, key[0], key[3])) for key in keys]


def heads(record: Record) -> str:
    """The head layout, query heads on key heads: `64/4`; of an op without one, nothing."""
    query, key = record.shape.get("HQ"), record.shape.get("H")
    return f"{query}/{key}" if query and key else ""


def _against(records: Sequence[Record], op: str, regime: Regime) -> str:
    """Why nothing is decided of an op in a regime; empty where nothing speaks against it."""
    against = missed(records, None) or without_controls(records).get(op, "")
    if regime is Regime.QUEUE and not against:
        against = missed(records, Regime.QUEUE) or without_queue_controls(records).get(op, "")
    return against


def _decide(
    key: tuple[str, Direction, str, Regime], rows: Sequence[Record], against: str
) -> Payment:
    """against: why nothing is decided of them, or nothing."""
    op, direction, layout, regime = key
    cases: dict[str, list[Record]] = {}
    for r in rows:
        cases.setdefault(r.case_id, []).append(r)
    cells = sorted(
        (_cell(case, regime) for case in cases.values()), key=lambda c: (c.length, c.label)
    )
    answer, length, why = _answer(cells)
    if rows[0].device == "cpu":
        against = ON_A_CPU
    if against:
        answer, length, why = Pays.NOT_DECIDED, None, against
    elif answer is Pays.FROM:
        why = _left_out([r for r in rows if length is None or r.length >= length])
    gpu, axis = rows[0].gpu_name, labels.axis(op)
    return Payment(gpu, op, direction, layout, regime, axis, answer, length, why, tuple(cells))


def _left_out(rows: Sequence[Record]) -> str:
    """The alternatives that no ratio is against, since they failed where the op pays."""
    failed = sorted({r.implementation for r in rows if _failed(r)})
    return f"without {', '.join(failed)}, which failed" if failed else ""


def _failed(record: Record) -> bool:
    return record.role is Role.ALTERNATIVE and record.status not in BENIGN


def _cell(case: Sequence[Record], regime: Regime) -> Cell:
    first = case[0]
    place = (first.case_id, labels.case(first), ops.ladder(first), first.length)
    ours = [
        r
        for r in case
        if r.role in (Role.CANDIDATE, Role.BASELINE)
        and r.status is Status.OK
        and r.timed_in(regime)
    ]
    best = min(ours, key=lambda r: r.timed_in(regime) or 0.0, default=None)
    if best is None:
        return Cell(*place, why=f"no implementation is valid and timed at {place[1]}")
    beside = best.compared(regime, Reference.ALTERNATIVE)
    if beside is None:
        why = f"no alternative is valid and timed beside it at {place[1]}"
        return Cell(*place, implementation=best.implementation, why=why)
    alternative = next(r for r in case if r.implementation == beside.against)
    doubt = best.time_doubt or alternative.time_doubt
    if doubt:
        return Cell(*place, implementation=best.implementation, why=doubt)
    return Cell(
        *place,
        implementation=best.implementation,
        alternative=beside.against,
        ratio=beside.ratio,
        lo=beside.lo,
        hi=beside.hi,
    )


def _answer(cells: Sequence[Cell]) -> tuple[Pays, int | None, str]:
    greatest = max(cell.length for cell in cells)
    failing = [cell for cell in cells if not cell.pays]
    last = max(failing, key=lambda c: (c.length, c.ratio is not None), default=None)
    if last is None or last.length < greatest:
        # Every case that is longer pays.
        return Pays.FROM, min(c.length for c in cells if last is None or c.length > last.length), ""
    at_the_end = [cell for cell in failing if cell.length == greatest]
    unknown = next((cell for cell in at_the_end if cell.ratio is None), None)
    if unknown is not None:
        return Pays.NOT_DECIDED, None, unknown.why
    growing = [cell for cell in at_the_end if _may_yet_pay(cell, cells)]
    why = f"{last.label}: {last.ratio:.3f} ({last.lo:.3f} to {last.hi:.3f})"
    return (Pays.NOT_FAR_ENOUGH if len(growing) == len(at_the_end) else Pays.NO), None, why


def _may_yet_pay(cell: Cell, cells: Sequence[Cell]) -> bool:
    """Whether its ratio grows along its ladder, or nothing is known of how it goes on."""
    shorter = [c for c in cells if c.ladder == cell.ladder and c.length < cell.length and c.ratio]
    if not shorter or cell.ratio is None:
        return True
    before = max(shorter, key=lambda c: c.length).ratio
    return before is not None and cell.ratio > before * GAIN


def _ladders(cells: Sequence[Cell]) -> dict[Hashable, list[Cell]]:
    """Cells that differ in nothing but their length, rising."""
    found: dict[Hashable, list[Cell]] = {}
    for cell in sorted(cells, key=lambda c: c.length):
        if cell.ratio is not None:
            found.setdefault(cell.ladder, []).append(cell)
    return found
