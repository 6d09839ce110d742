"""How each candidate of a run came out, for the terminal, the reports and the archive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch, Regime, Role, Status, Verdict
from nsabench.output import grouped
from nsabench.verdicts import caution
from nsabench.verdicts.statistics import geometric_mean


@dataclass(frozen=True)
class Standing:
    op: str
    implementation: str
    records: Sequence[Record]

    @cached_property
    def ran(self) -> list[Record]:
        """The cases that it neither declined nor was kept from."""
        return [r for r in self.records if r.status not in (Status.UNSUPPORTED, Status.SKIPPED)]

    @cached_property
    def right(self) -> list[Record]:
        return [r for r in self.records if r.status is Status.OK]

    @cached_property
    def verdicts(self) -> Mapping[Regime, Counter[Verdict]]:
        """How often there was which verdict, in each regime with a verdict."""
        judged = [r for r in self.records if not _only_checked(r)]
        counts = {
            regime: Counter(c.verdict for r in judged if (c := r.compared(regime)) and c.verdict)
            for regime in Regime
        }
        return {regime: count for regime, count in counts.items() if count}

    @cached_property
    def speedups(self) -> Mapping[Regime, Sequence[float]]:
        """By regime, the ratios that an average is made of: those without a caution."""
        ratios = {regime: caution.speedups(self.records, regime) for regime in Regime}
        return {regime: found for regime, found in ratios.items() if found}

    @cached_property
    def averages(self) -> Mapping[Regime, float | None]:
        return {regime: geometric_mean(ratios) for regime, ratios in self.speedups.items()}

    @cached_property
    def unjudged(self) -> Counter[str]:
        return Counter(
            "not timed" if _only_checked(r) else str(r.status)
            for r in self.records
            if not r.verdict or _only_checked(r)
        )

    @cached_property
    def cautions(self) -> Counter[str]:
        return Counter(r.caution for r in self.records if r.caution)

    @property
    def proviso(self) -> str:
        """How many verdicts rest on a check that was not shown to work, and the cautions."""
        unproven = sum(r.unproven_verdict and not _only_checked(r) for r in self.records)
        said = f"; {unproven} rest on an unproven check" if unproven else ""
        return said + "".join(f"; {text} in {n}" for text, n in self.cautions.items())

    @property
    def sentence(self) -> str:
        parts = [
            f"{regime}: {', '.join(f'{count[v]} {v}' for v in Verdict if count[v])}"
            for regime, count in self.verdicts.items()
        ]
        unjudged = [f"{n} {status}" for status, n in sorted(self.unjudged.items())]
        parts += [", ".join(unjudged)] if unjudged else []
        return f"{'; '.join(parts)} of {len(self.records)} cases{self.proviso}"


def standings(records: Iterable[Record]) -> list[Standing]:
    candidates = (r for r in records if r.role is Role.CANDIDATE)
    groups = grouped(candidates, lambda r: (r.op, r.implementation))
    return [Standing(op, name, rows) for (op, name), rows in groups.items()]


def versions(record: Record) -> list[str]:
    named = {"torch": record.torch, "Triton": record.triton, "CUDA": record.cuda}
    return [f"{name} {version}" for name, version in named.items() if version]


def tally_of_controls(records: Iterable[Record], *, always: Iterable[Catch] = ()) -> str:
    """`16 caught, 2 declined`; empty without controls. always: words to say even of 0 controls."""
    counts = Counter(r.caught for r in records if r.caught)
    words = [word for word in Catch if counts[word] or word in always]
    return ", ".join(f"{counts[word]} {word}" for word in words) if counts else ""


def _only_checked(record: Record) -> bool:
    """Whether it is right and was not timed, such as a Triton kernel on a CPU. That its verdict is
    inconclusive says nothing about it."""
    return record.status is Status.OK and record.median_ms is None
