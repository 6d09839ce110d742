from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch, Regime, Role, Status, Verdict
from nsabench.output import grouped
from nsabench.verdicts.statistics import geometric_mean

DECLINED = (Status.UNSUPPORTED, Status.SKIPPED)


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

    @cached_property
    def speedups(self) -> Mapping[Regime, Sequence[float]]:
        """The ratios without a caution, by regime."""
        ratios = {regime: self._list_speedups(regime) for regime in Regime}
        return {regime: found for regime, found in ratios.items() if found}

    def _list_speedups(self, regime: Regime) -> list[float]:
        compared = [r.compared(regime) for r in self.records if not r.caution_in(regime)]
        return [c.ratio for c in compared if c is not None and c.ratio is not None]

    @cached_property
    def averages(self) -> Mapping[Regime, float | None]:
        return {regime: geometric_mean(ratios) for regime, ratios in self.speedups.items()}

    @cached_property
    def _cautions(self) -> list[str]:
        counts = Counter(r.caution for r in self.records if r.caution)
        return [f"{text} in {n}" for text, n in counts.items()]

    @property
    def proviso(self) -> str:
        unproven = sum(r.unproven_verdict and not _is_untimed(r) for r in self.records)
        return f"{unproven} rest on an unproven check" if unproven else ""

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
            return []
        if all(r.median_ms is None for r in self.right):
            return ["not timed (CPU)" if self.right[0].device == "cpu" else "not timed"]
        parts = []
        for regime, verdicts in self.verdicts.items():
            average, ratios = self.averages.get(regime), self.speedups.get(regime, ())
            span = f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""
            speed = "no ratio" if average is None else f"{average:.2f}x as fast{span}"
            counts = [f"{verdicts[v]} {v}" for v in Verdict if verdicts[v]]
            parts.append(f"{regime}: {', '.join([speed, *counts])}")
        return [*parts, *self._cautions] if parts else ["no verdict"]

    @property
    def sentence(self) -> str:
        proviso = f"; {self.proviso}" if self.proviso else ""
        return f"{', '.join([self.correctness, *self.speed])}{proviso}"


def is_of_the_user(plan: Plan, record: Record) -> bool:
    return plan.info(record.op, record.implementation).source.is_file


def name_untried(plan: Plan, records: Sequence[Record]) -> str:
    """Return why no candidate was tried, or an empty text. The user's candidates count alone."""
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
    """Return `16 caught, 2 declined`. always: words to count even if the count is 0."""
    counts = Counter(r.caught for r in records if r.caught)
    words = [word for word in Catch if counts[word] or word in always]
    return ", ".join(f"{counts[word]} {word}" for word in words) if counts else ""


def _is_untimed(record: Record) -> bool:
    return record.status is Status.OK and record.median_ms is None
