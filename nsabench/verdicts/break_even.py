"""Find break-even lengths, from which an op is faster than what a model could run instead.

There is one decision for each GPU, op, direction, head layout and regime. The fastest valid
implementation of each case represents the op. From the break-even length, all cases are faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nsabench import labels
from nsabench.checks.cases import by_case
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Direction, Pays, Reference, Regime, Role, Status
from nsabench.verdicts.length_series import Tested, find_least_length, find_objections

# Names of the regimes for readers. Most models call from Python, so that regime comes first.
REGIME_NAMES = {
    Regime.QUEUE: "from Python",
    Regime.DEVICE: "by its kernels alone",
    Regime.GRAPH: "in a CUDA graph",
}
LIMIT = 1.0


@dataclass(frozen=True)
class BreakEven:
    gpu: str
    op: str
    direction: Direction
    heads: str
    regime: Regime
    axis: str
    answer: Pays
    length: int | None
    why: str  # why nothing is decided, which alternatives failed, or a case that is not faster
    tested: tuple[Tested, ...]  # by length: the op's best implementation and the best alternative

    @property
    def what(self) -> str:
        return " ".join(filter(None, (self.op, self.heads, self.direction)))

    @property
    def sentence(self) -> str:
        if self.answer is Pays.FROM:
            but = f" ({self.why})" if self.why else ""
            return f"pays from {self.axis} = {self.length}{but}"
        if self.answer is Pays.NO:
            return f"pays at no length up to {self.axis} = {self.greatest}"
        return f"not decided: {self.why}"

    @property
    def summary(self) -> str:
        _, against = self.used
        is_decided = self.answer is not Pays.NOT_DECIDED
        to = f", against {', '.join(against)}" if against and is_decided else ""
        return f"{self.what} ({self.regime}): {self.sentence}{to}"

    @property
    def greatest(self) -> int:
        return max(case.length for case in self.tested)

    @property
    def used(self) -> tuple[list[str], list[str]]:
        """Return implementations and alternatives in cases at or above the break-even length."""
        used = [t.comparison for t in self.tested if t.length >= (self.length or 0)]
        names = {c.implementation for c in used if c.implementation}
        return sorted(names), sorted({c.against for c in used if c.against})


def decide(records: Sequence[Record]) -> list[BreakEven]:
    """Decide for each op that a run compares with alternatives, in each regime that was timed."""
    with_alternatives = {(r.op, r.case_id) for r in records if r.role is Role.ALTERNATIVE}
    asked = [r for r in records if (r.op, r.case_id) in with_alternatives]
    queue = {r.op for r in asked if r.compared(Regime.QUEUE, Reference.ALTERNATIVE)}
    groups: dict[tuple[str, Direction, str, Regime], list[Record]] = {}
    for r in asked:
        for regime in (r.regime, Regime.QUEUE) if r.op in queue else (r.regime,):
            if r.may_be_judged_in(regime):
                groups.setdefault((r.op, r.direction, _name_heads(r), regime), []).append(r)
    order, regimes = list(dict.fromkeys(r.op for r in asked)), list(REGIME_NAMES)
    keys = sorted(groups, key=lambda key: (order.index(key[0]), regimes.index(key[3])))
    decided = []
    for key in keys:
        op, direction, layout, regime = key
        reasons = find_objections(records, op, regime)
        gpu, axis = groups[key][0].gpu_name, labels.axis(op)
        tested = [_compare_best(case, regime) for case in by_case(groups[key]).values()]
        tested.sort(key=lambda case: (case.length, case.label))
        answer, length, why = _decide_answer(tested)
        if reasons:
            answer, length, why = Pays.NOT_DECIDED, None, reasons[0]
        elif answer is Pays.FROM:
            why = _name_failed([r for r in groups[key] if r.length >= (length or 0)])
        decided.append(
            BreakEven(gpu, op, direction, layout, regime, axis, answer, length, why, tuple(tested))
        )
    return decided


def _name_heads(record: Record) -> str:
    query, key = record.shape.get("HQ"), record.shape.get("H")
    return f"{query}/{key}" if query and key else ""


def _name_failed(records: Sequence[Record]) -> str:
    failed = {
        r.implementation for r in records if r.role is Role.ALTERNATIVE and r.status not in BENIGN
    }
    return f"without {', '.join(sorted(failed))}, which failed" if failed else ""


def _compare_best(case: Sequence[Record], regime: Regime) -> Tested:
    label = labels.case(case[0])
    ours = [
        r
        for r in case
        if r.role in (Role.CANDIDATE, Role.BASELINE)
        and r.status is Status.OK
        and r.median_in(regime)
    ]
    best = min(ours, key=lambda r: r.median_in(regime) or 0.0, default=None)
    if best is None:
        untested = replace(case[0], implementation="", reason="", comparisons=())
        unknown = untested.comparison(regime, Reference.ALTERNATIVE)
        why = f"no implementation is valid and timed at {label}"
        return Tested(untested, replace(unknown, reason=why), label)
    unknown = replace(best, comparisons=()).comparison(regime, Reference.ALTERNATIVE)
    beside = best.compared(regime, Reference.ALTERNATIVE)
    if beside is None:
        why = f"no alternative is valid and timed beside it at {label}"
        return Tested(best, replace(unknown, reason=why), label)
    alternative = next(r for r in case if r.implementation == beside.against)
    doubt = best.time_doubt or alternative.time_doubt
    return Tested(best, replace(unknown, reason=doubt) if doubt else beside, label)


def _decide_answer(tested: Sequence[Tested]) -> tuple[Pays, int | None, str]:
    length, failing = find_least_length(tested, LIMIT)
    if length is not None:
        return Pays.FROM, length, ""
    unknown = next((case for case in failing if case.comparison.ratio is None), None)
    if unknown is not None:
        return Pays.NOT_DECIDED, None, unknown.why
    last = failing[0].comparison
    return Pays.NO, None, f"{failing[0].label}: {last.ratio:.3f} ({last.lo:.3f} to {last.hi:.3f})"
