"""The decision: the smallest tested length from which on every tested case passes.

Monotone by construction: lengths are walked from the greatest down, and the first at which a case
does not pass ends the walk, so there is no length above a threshold at which the candidate failed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nsabench.model.source import Source
from nsabench.model.vocabulary import MARGIN, Answer, Regime, Status, Verdict
from nsabench.planning.narrow import Narrowed
from nsabench.verdicts.caution import tally
from nsabench.verdicts.threshold.evidence import AXES, Evidence, Note, Tested
from nsabench.verdicts.threshold.union import (
    looked_at_together,
    refuse_several_kernels,
    taken_for_one,
)
from nsabench.verdicts.verdict import NEAR

# A case the candidate declines is none it was tested on: the gate does not use it there.
DECLINED = frozenset({Status.UNSUPPORTED, Status.SKIPPED})
LEAST_LENGTHS = 2
LEAST_VALUES = 2  # of each axis in `evidence.AXES` that the op has


@dataclass(frozen=True)
class Rung:
    """What was found at one length."""

    length: int
    cases: int
    passed: int
    weakest: float | None  # the smallest speedup_lo; None when a case has none


@dataclass(frozen=True)
class Decision:
    """`min_length` in keys; None with the reasons. `decided_by`: the case that stopped the walk.

    own: it is of the user's own file. notes: what is worth saying and keeps nothing from being
    decided. one_process: how many cases from there on pass by little, and no second process looked
    at them for this margin.
    """

    gpu: str
    combo: str
    op: str
    candidate: str
    margin: float
    min_length: int | None
    reasons: list[str] = field(default_factory=list)
    rungs: list[Rung] = field(default_factory=list)
    decided_by: Tested | None = None
    runs: list[str] = field(default_factory=list)
    axis: str = "L"  # the size that lengths are of
    notes: list[str] = field(default_factory=list)
    one_process: int = 0
    caveats: list[str] = field(default_factory=list)  # what it rests on that is not proven
    own: bool = False
    answer: Answer = Answer.NOT_TESTED
    where: tuple[str, ...] = ()  # the conditions that it is for
    regime: Regime = Regime.DEVICE
    caution: str = ""  # what to bear in mind beside it, and in how many of its cases
    unpaired: str = ""  # that torch and Triton of the combo are no pair

    @property
    def said(self) -> str:
        """The answer in words, with its regime."""
        return f"{self.regime}: {self.sentence}"

    @property
    def sentence(self) -> str:
        """The answer in words, of a reader who knows the regime."""
        if self.answer is Answer.FROM:
            only = f" where {' and '.join(self.where)}" if self.where else ""
            bear = f" ({self.caution})" if self.caution else ""
            return f"worth using from {self.axis} = {self.min_length} on{only}{bear}"
        return "not worth using at any length" if self.answer is Answer.NO else str(self.answer)

    @property
    def on(self) -> str:
        """The combo, and whether its torch and its Triton are no pair."""
        return f"{self.combo} ({self.unpaired})" if self.unpaired else self.combo

    @property
    def tested(self) -> int:
        return sum(rung.cases for rung in self.rungs)


_Key = tuple[str, str, str, Regime]


def decide_all(given: Sequence[Evidence], margin: float = MARGIN) -> list[Decision]:
    """One decision a GPU, combo, op, regime and candidate. Of each op in a regime the user's own
    come first, then the smallest threshold, then the best.

    Raises `UsageError` when a candidate is not one kernel in all that is given.
    """
    refuse_several_kernels(given)
    taken = taken_for_one(given)
    conditions = {evidence.where for evidence in given}
    # Where they were not narrowed alike, they are together for no one shape.
    where = conditions.pop() if len(conditions) == 1 else ()
    groups: dict[_Key, dict[str, list[Tested]]] = defaultdict(lambda: defaultdict(list))
    objections: dict[_Key, list[str]] = defaultdict(list)
    notes: dict[_Key, list[Note]] = defaultdict(list)
    caveats: dict[_Key, list[str]] = defaultdict(list)
    for evidence in looked_at_together(given):
        for tested in evidence.tested:
            groups[_key(tested)][tested.candidate].append(tested)
        for key in {_key(tested) for tested in evidence.tested}:
            _, _, op, regime = key
            against = evidence.against(op, regime)
            objections[key] += [o for o in against if o not in objections[key]]
            notes[key] += [n for n in evidence.notes if n.op == op and n not in notes[key]]
            caveats[key] += [c for c in evidence.caveats.get(op, ()) if c not in caveats[key]]
    return [
        decision
        for key, group in sorted(groups.items())
        for decision in sorted(
            (
                _decide(
                    name,
                    rows,
                    objections[key],
                    [
                        n.sentence
                        for n in notes[key]
                        if n.implementation == name or n.implementation not in group
                    ],
                    [*caveats[key], *taken.get((key[2], name), ())],
                    margin,
                    where,
                )
                for name, rows in group.items()
            ),
            key=preference,
        )
    ]


def _key(tested: Tested) -> _Key:
    return tested.gpu, tested.combo, tested.op, tested.regime


def _decide(
    candidate: str,
    rows: Sequence[Tested],
    objections: Sequence[str],
    notes: Sequence[str],
    caveats: Sequence[str],
    margin: float,
    where: tuple[str, ...],
) -> Decision:
    by_length: dict[int, list[Tested]] = defaultdict(list)
    for row in rows:
        if row.status not in DECLINED:
            by_length[row.length].append(row)
    threshold: int | None = None
    above: list[Tested] = []
    stopper: Tested | None = None
    for length in sorted(by_length, reverse=True):
        failing = [row for row in by_length[length] if not passes(row, margin)]
        if failing:
            stopper = min(failing, key=lambda row: (_is_open(row), row.speedup_lo or 0.0))
            break
        threshold = length
    reasons = list(objections)
    answer = Answer.NOT_DECIDED
    if not by_length:
        answer = Answer.NOT_TESTED
        reasons.append(_untested(rows))
    elif threshold is None:
        assert stopper is not None
        if not reasons and not _is_open(stopper):
            answer = Answer.NO
        reasons.append(
            f"nothing qualifies: at the greatest length, {stopper.axis}={stopper.length}, "
            f"{_why(stopper, margin)}"
        )
    else:
        above = [row for row in rows if row.status not in DECLINED and row.length >= threshold]
        reasons += _gaps(above, rows, threshold, Narrowed(where).pinned)
        if not reasons:
            answer = Answer.FROM
    unconfirmed = [] if reasons else [row for row in above if _is_unconfirmed(row, margin)]
    if unconfirmed:
        notes = [*notes, _one_process(unconfirmed, margin)]
    return Decision(
        gpu=rows[0].gpu,
        combo=rows[0].combo,
        op=rows[0].op,
        candidate=candidate,
        margin=margin,
        min_length=None if reasons else threshold,
        reasons=reasons,
        rungs=[_rung(n, by_length[n], margin) for n in sorted(by_length)],
        decided_by=stopper,
        runs=sorted({row.run_id for row in rows}),
        axis=rows[0].axis,
        notes=list(notes),
        one_process=len(unconfirmed),
        caveats=list(caveats),
        own=any(Source(row.source).is_file for row in rows),
        answer=answer,
        where=where,
        regime=rows[0].regime,
        unpaired=rows[0].unpaired,
        caution="" if reasons else tally(row.caution for row in above),
    )


def _is_open(row: Tested) -> bool:
    """Whether it is not known that this case does not pass."""
    return row.status == Status.OK and row.verdict == Verdict.INCONCLUSIVE


def _untested(rows: Sequence[Tested]) -> str:
    why = next((f": {row.why}" for row in rows if row.why), "")
    return f"no case was measured{why}"


def passes(row: Tested, margin: float) -> bool:
    """Right, clearly faster, and by the margin at the lower end of the interval."""
    return (
        row.status == Status.OK
        and row.verdict == Verdict.FASTER
        and row.speedup_lo is not None
        and row.speedup_lo >= margin
    )


def _is_unconfirmed(row: Tested, margin: float) -> bool:
    """Whether one process alone says that it passes, and another might well not."""
    assert row.speedup_lo is not None
    return row.speedup_lo < margin * (1 + NEAR) and row.margin != margin


def _one_process(rows: Sequence[Tested], margin: float) -> str:
    looked_at = sorted({row.margin for row in rows if row.margin is not None})
    confirmations = (
        f"verdicts were confirmed at {' and '.join(f'{m:g}' for m in looked_at)}"
        if looked_at
        else "none of them is known to have been measured twice"
    )
    weakest = min(rows, key=lambda row: row.speedup_lo or 0.0)
    return (
        f"it rests on one process: {len(rows)} of the cases that pass do so by less than "
        f"{NEAR:.0%}, such as {weakest.label} with speedup_lo {weakest.speedup_lo:.3f}, and "
        f"{confirmations}; `nsabench all --margin {margin:g}` measures such cases twice"
    )


def _why(row: Tested, margin: float) -> str:
    who, why = f"{row.candidate} on {row.label}", f" ({row.why})" if row.why else ""
    if row.status != Status.OK:
        return f"{who} is {row.status}{why}"
    if row.speedup_lo is None:
        return f"{who} has no speed-up ({row.verdict})"
    return f"{who} is {row.verdict}, speedup_lo {row.speedup_lo:.3f} against {margin:g}{why}"


def _gaps(
    above: Sequence[Tested], rows: Sequence[Tested], length: int, pinned: frozenset[str]
) -> Iterable[str]:
    """What too little was tested of, from the threshold on. pinned: sizes of which one value is
    all that was asked for."""
    lengths = {row.length for row in above}
    if len(lengths) < LEAST_LENGTHS:
        yield f"coverage is too small: from {length} on only one length was tested"
    for axis in sorted({axis for row in rows for axis in row.axes}):
        values = sorted({row.axes[axis] for row in above if axis in row.axes})
        if len(values) < LEAST_VALUES and AXES[axis] not in pinned:
            tested = ", ".join(map(str, values)) or "none"
            yield f"coverage is too small: from {length} on the tested {axis} are {tested}"


def _rung(length: int, rows: Sequence[Tested], margin: float) -> Rung:
    values = [row.speedup_lo for row in rows]
    weakest = None if None in values else min(v for v in values if v is not None)
    return Rung(length, len(rows), sum(passes(row, margin) for row in rows), weakest)


def preference(decision: Decision) -> tuple[bool, float, int, float, str]:
    """The user's own first, then the smallest threshold, then whoever passes most cases, then by
    the worst speed-up."""
    least = float("inf") if decision.min_length is None else float(decision.min_length)
    used = [rung for rung in decision.rungs if rung.length >= (decision.min_length or 0)]
    passed = sum(rung.passed for rung in used)
    worst = min((rung.weakest or 0.0 for rung in used), default=0.0)
    return not decision.own, least, -passed, -worst, decision.candidate
