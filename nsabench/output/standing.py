import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from nsabench import labels
from nsabench.model.plan import Plan
from nsabench.model.record import Comparison, Record
from nsabench.model.vocabulary import Catch, Reference, Regime, Role, Status, Verdict
from nsabench.output import grouped
from nsabench.verdicts.statistics import Ratio
from nsabench.verdicts.verdict import decide_verdict

DECLINED = (Status.UNSUPPORTED, Status.SKIPPED)
MOST_NAMED = 2  # references of a ratio that are named


def head(records: Sequence[Record]) -> str:
    ran = [r for r in records if r.status not in DECLINED]
    if not ran:
        return f"NOT RUN in {len(records)} of {len(records)}: {records[0].reason}"
    declined = f", declined {len(records) - len(ran)}" if len(ran) < len(records) else ""
    statuses = Counter(r.status for r in ran)
    right = statuses.pop(Status.OK, 0)
    [(status, count)] = statuses.most_common(1) or [(Status.OK, right)]
    return f"{loud(status)} {count} of {len(ran)}{declined}"


def loud(status: Status) -> str:
    return "RIGHT" if status is Status.OK else status.value.replace("_", " ").upper()


@dataclass(frozen=True)
class Standing:
    op: str
    implementation: str
    records: Sequence[Record]

    @cached_property
    def ran(self) -> list[Record]:
        return [r for r in self.records if r.status not in DECLINED]

    @cached_property
    def right(self) -> list[Record]:
        return [r for r in self.records if r.status is Status.OK]

    @cached_property
    def verdicts(self) -> Mapping[Regime, Counter[Verdict]]:
        judged = [r for r in self.records if not _is_untimed(r)]
        counts = {
            regime: Counter(c.verdict for r in judged if (c := r.compared(regime)) and c.verdict)
            for regime in Regime
        }
        return {regime: count for regime, count in counts.items() if count}

    def list_ratios(self, regime: Regime) -> list[Comparison]:
        """Return conclusive ratios without `caution`: to baselines or, if none, alternatives."""
        found = [r.compared_best(regime) for r in self.records if not r.caution_in(regime)]
        ratios = [c for c in found if c is not None and c.ratio is not None]
        ratios = [c for c in ratios if c.reference is Reference.BASELINE] or ratios
        return [c for c in ratios if judge(c) is not Verdict.INCONCLUSIVE]

    def _list_provisos(self) -> list[str]:
        unproven = sum(r.unproven_verdict and not _is_untimed(r) for r in self.records)
        rest = f"{unproven} rest on an unproven check" if unproven else ""
        return list(filter(None, (labels.count_cautions(r.caution for r in self.records), rest)))

    @property
    def correctness(self) -> str:
        failed = [r for r in self.ran if r.status is not Status.OK]
        if not failed:
            return head(self.records)
        [(status, _)] = Counter(r.status for r in failed).most_common(1)
        first = next(r for r in failed if r.status is status)
        return f"{head(self.records)}: {first.diagnosis or first.reason}"

    @property
    def speed(self) -> list[str]:
        if not self.right:
            return ["not timed, since it is not right"] if self.ran else []
        if all(r.median_ms is None for r in self.right):
            return ["not timed (CPU)" if self.right[0].device == "cpu" else "not timed"]
        shown = [x for x in self.verdicts if self.right[0].device != "cpu" or self.list_ratios(x)]
        parts = [self._describe_speed(regime) for regime in shown]
        return [*parts, *self._list_provisos()] if parts or self.verdicts else ["no verdict"]

    def _describe_speed(self, regime: Regime) -> str:
        verdicts, compared = self.verdicts[regime], self.list_ratios(regime)
        counts = [f"{verdicts[v]} {v}" for v in Verdict if verdicts[v]]
        if not compared:
            reasons = (c.reason for r in self.records if (c := r.compared(regime)) and c.reason)
            why = next(reasons, "no ratio")
            return f"{regime}: {', '.join(counts)} ({why})"
        more = counts if compared[0].reference is Reference.BASELINE else []
        parts = [f"{_span(compared)} as fast as {name_references(compared)}", *more]
        return f"{regime}: {', '.join(parts)}"

    @property
    def brief(self) -> str:
        compared = {regime: self.list_ratios(regime) for regime in self.verdicts}
        ratios = [f"{regime} {_span(own)}" for regime, own in compared.items() if own]
        return "; ".join([head(self.records), *filter(None, [", ".join(ratios)])])


def judge(c: Comparison) -> Verdict:
    """Return the verdict. Against an alternative, it follows from the interval of the ratio."""
    if c.verdict is not None:
        return c.verdict
    return decide_verdict(Ratio(c.ratio or 0, c.lo or 0, c.hi or math.inf), c.regime)[0]


def name_references(comparisons: Iterable[Comparison]) -> str:
    """Return a text such as `sdpa_gqa` or `the best baseline (sdpa_gqa, bmm_softmax, 2 more)`."""
    found = {c.against: c.reference for c in comparisons if c.against}
    names = list(found)[:MOST_NAMED]
    names += [f"{len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else []
    listed = ", ".join(names)
    return listed if len(found) < 2 else f"the best {min(found.values())} ({listed})"


def _span(compared: Sequence[Comparison]) -> str:
    ratios = [c.ratio or 0.0 for c in compared]
    return " to ".join(dict.fromkeys(f"{end:.2f}x" for end in (min(ratios), max(ratios))))


def is_of_the_user(plan: Plan, record: Record) -> bool:
    return plan.info(record.op, record.implementation).source.is_file


def name_untried(plan: Plan, records: Sequence[Record]) -> str:
    """Return why no candidate was tried, or "". If the user has candidates, only those count."""
    candidates = [r for r in records if r.role is Role.CANDIDATE]
    judged = [r for r in candidates if is_of_the_user(plan, r)] or candidates
    if any(r.status not in DECLINED for r in judged):
        return ""
    if not judged:
        return "none takes part"
    return f"{judged[0].implementation}: {judged[0].reason}"


def standings(records: Iterable[Record]) -> list[Standing]:
    candidates = (r for r in records if r.role is Role.CANDIDATE)
    groups = grouped(candidates, lambda r: (r.op, r.implementation))
    return [Standing(op, name, rows) for (op, name), rows in groups.items()]


def versions(record: Record) -> list[str]:
    named = {"torch": record.torch, "Triton": record.triton, "CUDA": record.cuda}
    return [f"{name} {version}" for name, version in named.items() if version]


def tally_of_controls(records: Iterable[Record], *, always: Iterable[Catch] = ()) -> str:
    """Return a text such as `16 caught, 2 declined`. `always`: words that appear even with 0."""
    counts = Counter(r.caught for r in records if r.caught)
    words = [word for word in Catch if counts[word] or word in always]
    return ", ".join(f"{counts[word]} {word}" for word in words) if counts else ""


def _is_untimed(record: Record) -> bool:
    return record.status is Status.OK and record.median_ms is None
