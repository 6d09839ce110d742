"""Decide the smallest tested length from which every tested case passes the margin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nsabench import labels, ops
from nsabench.checks.controls import describe_unproven, find_unproven
from nsabench.machine.environment.pairs import describe_mismatch
from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.vocabulary import (
    MARGIN,
    Direction,
    Regime,
    Role,
    Status,
    ThresholdAnswer,
    Verdict,
)
from nsabench.planning.narrow import ALL, Narrowed
from nsabench.verdicts.length_series import Tested, find_least_length, find_objections
from nsabench.verdicts.tables import read_records
from nsabench.verdicts.verdict import NEAR

DECLINED = frozenset({Status.UNSUPPORTED, Status.SKIPPED})
LEAST_LENGTHS = 2
LEAST_VALUES = 2  # the fewest tested values of each size in `AXES` that the op has
SELECTED = "L"  # selected keys: thresholds.yaml has their threshold as `runtime.sel_triton_min_L`
# The speed of a kernel may depend on these sizes, if its op has them.
AXES = {"head dims": "D", "heads": "H", "numbers of spans": "n_spans"}


@dataclass(frozen=True)
class Decision:
    run_id: str
    gpu: str
    combo: str
    op: str
    candidate: str
    margin: float
    min_length: int | None  # a value of `axis`; None: see `reasons`
    reasons: list[str] = field(default_factory=list)
    tested: int = 0  # how many cases were tested
    weakest: float = 0.0  # the smallest lower end of a ratio's interval from the threshold up
    decided_by: Tested | None = None  # a failing case that keeps the threshold from being smaller
    axis: str = SELECTED  # the size that is the length
    notes: list[str] = field(default_factory=list)  # remarks that do not change the answer
    caveats: list[str] = field(default_factory=list)  # the unproven checks behind the answer
    own: bool = False  # the candidate is from the user's own file
    answer: ThresholdAnswer = ThresholdAnswer.NOT_TESTED
    where: tuple[str, ...] = ()  # the conditions of --where
    regime: Regime = Regime.DEVICE
    caution: str = ""  # `Record.caution`, with the number of cases that have it
    unpaired: str = ""  # a warning if torch and Triton of the combo do not belong together

    @property
    def summary(self) -> str:
        return f"{self.regime}: {self.sentence}"

    @property
    def sentence(self) -> str:
        if self.answer is ThresholdAnswer.FROM:
            only = f" where {' and '.join(self.where)}" if self.where else ""
            bear = f" ({self.caution})" if self.caution else ""
            return f"worth using from {self.axis} = {self.min_length}{only}{bear}"
        if self.answer is ThresholdAnswer.NOT_DECIDED:
            return "not decided whether it is faster, and from which length"
        return "not worth using at any length" if self.answer is ThresholdAnswer.NO else self.answer

    @property
    def versions(self) -> str:
        return f"{self.combo} ({self.unpaired})" if self.unpaired else self.combo


def _name_combo(record: Record) -> str:
    if record.torch is None:
        return "unknown versions"
    named = f"torch {record.torch}, triton {record.triton}"
    return f"{named}, CUDA {record.cuda}" if record.cuda else named


def read_run(folder: Path, narrowed: Narrowed = ALL) -> tuple[list[Record], Plan]:
    records, plan = read_records(folder), narrowed.plan(Plan.read(folder / "plan.json"))
    ops.refuse_other(plan)
    return [r for r in records if r.case_id in plan.by_id], plan


def decide_run(
    records: Sequence[Record], plan: Plan | None = None, margin: float | None = None
) -> list[Decision]:
    """Decide for each op, regime and candidate of a run. A run of an archive has no plan."""
    margin = margin or (plan.margin if plan else MARGIN)
    # A gate, which chooses between a kernel and its fallback, asks only in a forward.
    records = [r for r in records if r.direction is Direction.FORWARD]
    shards = _split_shards(records, plan)
    unproven = [find_unproven(own) for own in shards]
    groups: dict[tuple[str, Regime], dict[str, list[Tested]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for tested in _find_tested(records):
        key = tested.record.op, tested.comparison.regime
        groups[key][tested.record.implementation].append(tested)
    decisions = []
    for (op, regime), by_candidate in sorted(groups.items()):
        reasons = list(dict.fromkeys(o for own in shards for o in find_objections(own, op, regime)))
        caveats = dict.fromkeys(
            sentence
            for lacks in unproven
            for _, sentence in describe_unproven(lack for lack in lacks if lack.group.op == op)
        )
        decided = [
            _decide_candidate(rows, reasons, list(caveats), margin, plan)
            for rows in by_candidate.values()
        ]
        decisions += sorted(decided, key=preference)
    return decisions


def _split_shards(records: Sequence[Record], plan: Plan | None) -> list[list[Record]]:
    """Return the records of each shard of a merged run: each has its own controls."""
    shards: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        shards[plan.by_id[record.case_id].shard if plan else 0].append(record)
    return [shards[number] for number in sorted(shards)]


def _find_tested(records: Iterable[Record]) -> Iterator[Tested]:
    candidates = [r for r in records if r.role is Role.CANDIDATE]
    queues = any(r.compared(Regime.QUEUE) for r in candidates)
    for record in candidates:
        for regime in (record.regime, Regime.QUEUE) if queues else (record.regime,):
            if record.may_be_judged_in(regime):
                yield Tested(record, record.comparison(regime), labels.case_with_id(record))


def _decide_candidate(
    rows: Sequence[Tested],
    objections: Sequence[str],
    caveats: Sequence[str],
    margin: float,
    plan: Plan | None,
) -> Decision:
    first, regime, axis = rows[0].record, rows[0].comparison.regime, labels.axis(rows[0].record.op)
    where = plan.where if plan else ()
    info = plan.by_name.get((first.op, first.implementation)) if plan else None
    tested = _without_declined_series(rows)
    threshold, failing = find_least_length(tested, margin)
    stopper = min(failing, key=lambda row: (_is_open(row), row.lo or 0.0), default=None)
    above = [row for row in tested if threshold is not None and row.length >= threshold]
    reasons = list(objections)
    answer = ThresholdAnswer.NOT_DECIDED
    if not tested:
        answer = ThresholdAnswer.NOT_TESTED
        why = next((f": {row.why}" for row in rows if row.why), "")
        reasons.append(f"no case was measured{why}")
    elif threshold is None:
        assert stopper is not None
        if not reasons and not _is_open(stopper):
            answer = ThresholdAnswer.NO
        reasons.append(
            f"nothing qualifies: at the greatest length, {axis}={stopper.length}, "
            f"{_describe_failure(stopper, margin)}"
        )
    else:
        reasons += _find_gaps(above, rows, threshold, Narrowed(where).pinned)
        if not reasons:
            answer = ThresholdAnswer.FROM
    cautions = () if reasons else (row.record.caution_in(regime) for row in above)
    return Decision(
        run_id=first.run_id,
        gpu=first.gpu_name,
        combo=_name_combo(first),
        op=first.op,
        candidate=first.implementation,
        margin=margin,
        min_length=None if reasons else threshold,
        reasons=reasons,
        tested=len(tested),
        weakest=min((row.lo or 0.0 for row in above), default=0.0),
        decided_by=stopper,
        axis=axis,
        notes=[] if reasons else list(_note_one_process(above, margin, plan)),
        caveats=list(caveats),
        own=info is not None and info.source.is_file,
        answer=answer,
        where=where,
        regime=regime,
        unpaired=describe_mismatch(first.torch, first.triton),
        caution=labels.count_cautions(cautions),
    )


def _without_declined_series(rows: Sequence[Tested]) -> list[Tested]:
    """Leave out each length series that the candidate declines as a whole."""
    series: dict[Hashable, list[Tested]] = defaultdict(list)
    for row in rows:
        series[ops.series_key(row.record)].append(row)
    ran = [own for own in series.values() if any(r.record.status not in DECLINED for r in own)]
    return [row for own in ran for row in own]


def _is_open(row: Tested) -> bool:
    return row.record.status is Status.OK and row.comparison.verdict is Verdict.INCONCLUSIVE


def _note_one_process(above: Iterable[Tested], margin: float, plan: Plan | None) -> Iterator[str]:
    """Note that cases near the margin were not confirmed, since the run had another margin."""
    close = [row for row in above if row.lo is not None and row.lo < margin * (1 + NEAR)]
    if close and plan is not None and margin != plan.margin:
        weakest = min(close, key=lambda row: row.lo or 0.0)
        yield (
            f"it rests on one process: {len(close)} of the cases that pass do so by less than "
            f"{NEAR:.0%}, such as {weakest.label} with speedup_lo {weakest.lo:.3f}, and a second "
            f"process confirmed only ratios near {plan.margin:g}; `nsabench all --margin "
            f"{margin:g}` measures these cases twice"
        )


def _describe_failure(row: Tested, margin: float) -> str:
    who, why = f"{row.record.implementation} on {row.label}", f" ({row.why})" if row.why else ""
    verdict = row.comparison.verdict
    if row.record.status is not Status.OK:
        return f"{who} is {row.record.status}{why}"
    if row.lo is None:
        is_timed = row.record.median_ms is not None
        without = f"was timed, but has no ratio to a baseline ({verdict}){why}"
        return f"{who} {without if is_timed else 'was not timed'}"
    return f"{who} is {verdict}, speedup_lo {row.lo:.3f} against {margin:g}{why}"


def _find_gaps(
    above: Sequence[Tested], rows: Sequence[Tested], length: int, pinned: frozenset[str]
) -> Iterable[str]:
    """Say of which sizes too few values were tested, except of those `pinned` by the user."""
    if len({row.length for row in above}) < LEAST_LENGTHS:
        yield f"coverage is too small: no length above {length} was tested"
    for name, size in AXES.items():
        if size in pinned or not any(size in row.record.shape for row in rows):
            continue
        values = sorted({row.record.shape[size] for row in above if size in row.record.shape})
        if len(values) < LEAST_VALUES:
            tested = ", ".join(map(str, values)) or "none"
            yield f"coverage is too small: from {length} the tested {name} are {tested}"


def preference(decision: Decision) -> tuple[bool, float, float, str]:
    """Return a sort key: the user's kernel first, then small thresholds, then great `weakest`."""
    least = float("inf") if decision.min_length is None else float(decision.min_length)
    return not decision.own, least, -decision.weakest, decision.candidate


def choose_for_gate(decisions: Iterable[Decision]) -> list[Decision]:
    """Return, for each run, GPU, op and regime, the best decision on the axis `SELECTED`."""
    best: dict[Hashable, Decision] = {}
    for decision in sorted(decisions, key=preference):
        if decision.gpu and decision.axis == SELECTED:
            place = decision.run_id, decision.gpu, decision.op, decision.regime
            best.setdefault(place, decision)
    return list(best.values())


def lengths_per_gpu(decisions: Iterable[Decision], regime: Regime) -> dict[str, int | None]:
    """Return for each GPU the threshold in a regime that holds for every op and run, or None."""
    lengths: dict[str, list[int | None]] = defaultdict(list)
    for decision in choose_for_gate(decisions):
        if decision.regime is regime:
            lengths[decision.gpu].append(decision.min_length)
    return {
        gpu: None if None in values else max(v for v in values if v is not None)
        for gpu, values in sorted(lengths.items())
    }
