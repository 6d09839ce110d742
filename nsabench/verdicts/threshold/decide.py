"""Decide the smallest tested length from which every tested case passes the margin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nsabench import labels
from nsabench.checks import Finding
from nsabench.machine.environment.pairs import describe_mismatch
from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.vocabulary import MARGIN, Answer, Regime, Status, Verdict
from nsabench.planning.narrow import Narrowed
from nsabench.verdicts.caution import beside, tally
from nsabench.verdicts.objections import against
from nsabench.verdicts.series import Tested, by_length, walk
from nsabench.verdicts.threshold.evidence import Evidence, of_records
from nsabench.verdicts.threshold.union import (
    decide_together,
    refuse_several_kernels,
    taken_for_one,
)
from nsabench.verdicts.verdict import NEAR

# A gate does not use a candidate on cases that it declines.
DECLINED = frozenset({Status.UNSUPPORTED, Status.SKIPPED})
LEAST_LENGTHS = 2
LEAST_VALUES = 2  # of each size in `AXES` that the op has
SELECTED = "L"  # the axis of `runtime.sel_triton_min_L`
# A kernel may depend on these sizes, if its op has them.
AXES = {"head dims": "D", "heads": "H", "numbers of spans": "n_spans"}


@dataclass(frozen=True)
class Rung:
    """The cases of one length. weakest: the smallest lower end, or None if a case has none."""

    length: int
    cases: int
    passed: int
    weakest: float | None


@dataclass(frozen=True)
class Decision:
    gpu: str
    combo: str
    op: str
    candidate: str
    margin: float
    min_length: int | None  # in sizes of `axis`; None: see `reasons`
    reasons: list[str] = field(default_factory=list)
    rungs: list[Rung] = field(default_factory=list)
    decided_by: Tested | None = None  # the failing case below the threshold
    runs: list[str] = field(default_factory=list)
    axis: str = SELECTED  # the size that is the length
    notes: list[str] = field(default_factory=list)  # they prevent nothing
    one_process: int = 0  # close cases above the threshold that one process measured.
    caveats: list[str] = field(default_factory=list)  # unproven checks behind it.
    own: bool = False  # the candidate is from the user's own file
    answer: Answer = Answer.NOT_TESTED
    where: tuple[str, ...] = ()  # conditions on the cases
    regime: Regime = Regime.DEVICE
    caution: str = ""  # with the number of its cases
    unpaired: str = ""  # a warning if torch and Triton of the combo do not belong together

    @property
    def said(self) -> str:
        return f"{self.regime}: {self.sentence}"

    @property
    def sentence(self) -> str:
        if self.answer is Answer.FROM:
            only = f" where {' and '.join(self.where)}" if self.where else ""
            bear = f" ({self.caution})" if self.caution else ""
            return f"worth using from {self.axis} = {self.min_length} on{only}{bear}"
        return "not worth using at any length" if self.answer is Answer.NO else str(self.answer)

    @property
    def on(self) -> str:
        return f"{self.combo} ({self.unpaired})" if self.unpaired else self.combo

    @property
    def tested(self) -> int:
        return sum(rung.cases for rung in self.rungs)


_Key = tuple[str, str, str, Regime]


@dataclass
class _Group:
    tested: dict[str, list[Tested]] = field(default_factory=lambda: defaultdict(list))
    against: list[str] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)


def combo(record: Record) -> str:
    if record.torch is None:
        return "as in the table"
    named = f"torch {record.torch}, triton {record.triton}"
    return f"{named}, CUDA {record.cuda}" if record.cuda else named


def decide_all(given: Sequence[Evidence], margin: float = MARGIN) -> list[Decision]:
    """Decide for each GPU, combo, op, regime and candidate, sorted by `preference` within an op and
    regime.

    Raises `UsageError` if a candidate is not the same kernel in all evidence.
    """
    refuse_several_kernels(given)
    taken = taken_for_one(given)
    conditions = {evidence.where for evidence in given}
    # Runs with different conditions together have none.
    where = conditions.pop() if len(conditions) == 1 else ()
    groups: dict[_Key, _Group] = defaultdict(_Group)
    for evidence in decide_together(given):
        for tested in evidence.tested:
            groups[_key(tested)].tested[tested.record.implementation].append(tested)
        for key in {_key(tested) for tested in evidence.tested}:
            _, _, op, regime = key
            _add_new(groups[key].against, against(evidence.against, op, regime))
            _add_new(groups[key].notes, evidence.notes.get(op, ()))
            _add_new(groups[key].caveats, evidence.caveats.get(op, ()))
    decisions = []
    for key, group in sorted(groups.items()):
        decided = []
        for name, rows in group.tested.items():
            notes = [
                f"{note.implementation}: {note.sentence}"
                for note in group.notes
                if note.implementation == name or note.implementation not in group.tested
            ]
            caveats = [*group.caveats, *taken.get((key[2], name), ())]
            decided.append(_decide_candidate(rows, group.against, notes, caveats, margin, where))
        decisions += sorted(decided, key=preference)
    return decisions


def decide_run(records: Sequence[Record], plan: Plan) -> list[Decision]:
    """Decide one run at the margin of its plan."""
    return decide_all([of_records(records, plan)], plan.margin)


def _key(tested: Tested) -> _Key:
    record = tested.record
    return record.gpu_name, combo(record), record.op, tested.comparison.regime


def _add_new(known: list[Any], more: Iterable[Any]) -> None:
    known += [item for item in more if item not in known]


def _decide_candidate(
    rows: Sequence[Tested],
    objections: Sequence[str],
    notes: Sequence[str],
    caveats: Sequence[str],
    margin: float,
    where: tuple[str, ...],
) -> Decision:
    first, regime, axis = rows[0].record, rows[0].comparison.regime, labels.axis(rows[0].record.op)
    tested = [row for row in rows if row.record.status not in DECLINED]
    threshold, failing = walk(tested, margin)
    stopper = min(failing, key=lambda row: (_is_open(row), row.lo or 0.0), default=None)
    above = [row for row in tested if threshold is not None and row.length >= threshold]
    reasons = list(objections)
    answer = Answer.NOT_DECIDED
    if not tested:
        answer = Answer.NOT_TESTED
        why = next((f": {row.why}" for row in rows if row.why), "")
        reasons.append(f"no case was measured{why}")
    elif threshold is None:
        assert stopper is not None
        if not reasons and not _is_open(stopper):
            answer = Answer.NO
        reasons.append(
            f"nothing qualifies: at the greatest length, {axis}={stopper.length}, "
            f"{_say_why_failed(stopper, margin)}"
        )
    else:
        reasons += _find_gaps(above, rows, threshold, Narrowed(where).pinned)
        if not reasons:
            answer = Answer.FROM
    unconfirmed = [] if reasons else [row for row in above if _is_unconfirmed(row, margin)]
    if unconfirmed:
        notes = [*notes, _note_one_process(unconfirmed, margin)]
    return Decision(
        gpu=first.gpu_name,
        combo=combo(first),
        op=first.op,
        candidate=first.implementation,
        margin=margin,
        min_length=None if reasons else threshold,
        reasons=reasons,
        rungs=[_make_rung(length, cases, margin) for length, cases in by_length(tested).items()],
        decided_by=stopper,
        runs=sorted({row.record.run_id for row in rows}),
        axis=axis,
        notes=list(notes),
        one_process=len(unconfirmed),
        caveats=list(caveats),
        own=any(row.own for row in rows),
        answer=answer,
        where=where,
        regime=regime,
        unpaired=describe_mismatch(first.torch, first.triton),
        caution="" if reasons else tally(beside(row.record, regime) for row in above),
    )


def _is_open(row: Tested) -> bool:
    return row.record.status is Status.OK and row.comparison.verdict is Verdict.INCONCLUSIVE


def _is_unconfirmed(row: Tested, margin: float) -> bool:
    assert row.lo is not None
    return row.lo < margin * (1 + NEAR) and row.margin != margin


def _note_one_process(rows: Sequence[Tested], margin: float) -> str:
    confirmed_at = sorted({row.margin for row in rows if row.margin is not None})
    confirmations = (
        f"verdicts were confirmed at {' and '.join(f'{m:g}' for m in confirmed_at)}"
        if confirmed_at
        else "none of them is known to have been measured twice"
    )
    weakest = min(rows, key=lambda row: row.lo or 0.0)
    return (
        f"it rests on one process: {len(rows)} of the cases that pass do so by less than "
        f"{NEAR:.0%}, such as {weakest.label} with speedup_lo {weakest.lo:.3f}, and "
        f"{confirmations}; `nsabench all --margin {margin:g}` measures such cases twice"
    )


def _say_why_failed(row: Tested, margin: float) -> str:
    who, why = f"{row.record.implementation} on {row.label}", f" ({row.why})" if row.why else ""
    verdict = row.comparison.verdict
    if row.record.status is not Status.OK:
        return f"{who} is {row.record.status}{why}"
    if row.lo is None:
        return f"{who} has no speed-up ({verdict})"
    return f"{who} is {verdict}, speedup_lo {row.lo:.3f} against {margin:g}{why}"


def _find_gaps(
    above: Sequence[Tested], rows: Sequence[Tested], length: int, pinned: frozenset[str]
) -> Iterable[str]:
    """Say which sizes were tested too little. pinned: sizes that the user limited to one value."""
    if len({row.length for row in above}) < LEAST_LENGTHS:
        yield f"coverage is too small: from {length} on only one length was tested"
    for name, size in AXES.items():
        if size in pinned or not any(size in row.record.shape for row in rows):
            continue
        values = sorted({row.record.shape[size] for row in above if size in row.record.shape})
        if len(values) < LEAST_VALUES:
            tested = ", ".join(map(str, values)) or "none"
            yield f"coverage is too small: from {length} on the tested {name} are {tested}"


def _make_rung(length: int, rows: Sequence[Tested], margin: float) -> Rung:
    values = [row.lo for row in rows]
    weakest = None if None in values else min(v for v in values if v is not None)
    return Rung(length, len(rows), sum(row.passes(margin) for row in rows), weakest)


def preference(decision: Decision) -> tuple[bool, float, int, float, str]:
    """Sort the user's own first, then by the smallest threshold, most passing cases, and the best
    weakest speed-up."""
    least = float("inf") if decision.min_length is None else float(decision.min_length)
    used = [rung for rung in decision.rungs if rung.length >= (decision.min_length or 0)]
    passed = sum(rung.passed for rung in used)
    worst = min((rung.weakest or 0.0 for rung in used), default=0.0)
    return not decision.own, least, -passed, -worst, decision.candidate


@dataclass(frozen=True)
class Gate:
    """The kernel that a gate uses for an op on a GPU, with every combo that was given.

    A gate knows one length for each GPU and calls one kernel, even if another is better with some
    combo.
    """

    decisions: list[Decision]  # one for each combo in which the kernel was tested
    untested: list[str]  # the other combos
    better: list[Decision]  # other kernels that come first with their combo

    @property
    def min_length(self) -> int | None:
        lengths = [decision.min_length for decision in self.decisions]
        if self.untested or None in lengths:
            return None
        return max(length for length in lengths if length is not None)

    @property
    def notes(self) -> Iterator[str]:
        chosen = self.decisions[0]
        where = f"{chosen.op} on {chosen.gpu}, {chosen.regime}: a gate goes by one kernel"
        if self.untested:
            yield (
                f"{where}, here {chosen.candidate}, which was not tested with "
                f"{' and '.join(self.untested)}: no length holds for all that was given"
            )
        for best in self.better:
            yield (
                f"{where} with every combo, here {chosen.candidate}; with {best.combo} "
                f"{best.candidate} is better"
            )


def gates(decisions: Iterable[Decision]) -> list[Gate]:
    """Choose a kernel for each op, regime and GPU, in the order of the decisions. A gate compares
    selected lengths, so ops on another axis have none."""
    groups: dict[tuple[str, str, Regime], dict[str, list[Decision]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for decision in decisions:
        if decision.gpu and decision.axis == SELECTED:
            groups[decision.gpu, decision.op, decision.regime][decision.combo].append(decision)
    return [_choose_kernel(by_combo) for by_combo in groups.values()]


def _choose_kernel(by_combo: dict[str, list[Decision]]) -> Gate:
    """Choose the user's own kernel if there is one. Else choose a kernel that was tested with most
    combos, and of these the one whose worst combo is best."""
    candidates: dict[str, list[Decision]] = defaultdict(list)
    for decision in (d for group in by_combo.values() for d in group):
        candidates[decision.candidate].append(decision)

    def order(own_decisions: list[Decision]) -> tuple[bool, int, tuple[object, ...]]:
        own = any(decision.own for decision in own_decisions)
        return not own, -len(own_decisions), max(map(preference, own_decisions))

    chosen = min(candidates.values(), key=order)
    tested = {decision.combo for decision in chosen}
    firsts = [min(group, key=preference) for combo, group in by_combo.items() if combo in tested]
    return Gate(
        decisions=chosen,
        untested=[combo for combo in by_combo if combo not in tested],
        better=[first for first in firsts if first not in chosen],
    )


def per_gpu(decisions: Sequence[Decision], regime: Regime = Regime.DEVICE) -> dict[str, int | None]:
    """Return the length for each GPU in a regime that holds for every op and combo, or None."""
    lengths: dict[str, list[int | None]] = defaultdict(list)
    for gate in gates(decisions):
        if gate.decisions[0].regime is regime:
            lengths[gate.decisions[0].gpu].append(gate.min_length)
    return {
        gpu: None if None in values else max(v for v in values if v is not None)
        for gpu, values in lengths.items()
    }
