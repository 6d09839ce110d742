"""How fast each implementation of an op is against the best alternative that ran beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nsabench.checks.best_baseline import fastest
from nsabench.checks.cases import by_case
from nsabench.checks.clocks import clock_spread
from nsabench.checks.row import Row
from nsabench.model.measurement import Bursts, Samples
from nsabench.model.vocabulary import Regime, Role
from nsabench.verdicts.statistics import MIN_ROUNDS_EVER, Ratio, paired, ratio_of_medians
from nsabench.verdicts.verdict import Key, has


@dataclass(frozen=True)
class Against:
    """ratio: time of the alternative over that of the implementation, above 1 where it pays."""

    alternative: str
    ratio: Ratio


def against_alternatives(
    rows: Sequence[Row], timings: Mapping[Key, Samples | Bursts], regime: Regime
) -> dict[Key, Against]:
    """Of each valid candidate and baseline that has a valid alternative beside it in a regime."""
    found: dict[Key, Against] = {}
    for case in by_case(rows).values():
        valid = (
            [row for row in case if row.time_ms(regime) is not None] if has(case, regime) else []
        )
        for row in valid:
            beside = [r for r in valid if r.role is Role.ALTERNATIVE and r.attempt == row.attempt]
            best = fastest(beside, regime)
            if row.role not in (Role.CANDIDATE, Role.BASELINE) or best is None:
                continue
            key = row.case_id, row.implementation
            ratio = _paired(timings[best.case_id, best.implementation], timings[key])
            if ratio is not None:
                widened = ratio.widened(clock_spread([row.conditions]))
                found[key] = Against(best.implementation, widened)
    return found


def _paired(a: Samples | Bursts, b: Samples | Bursts) -> Ratio | None:
    times = paired(a.round, a.time_ms, b.round, b.time_ms)
    return ratio_of_medians(*times) if len(times[0]) >= MIN_ROUNDS_EVER else None
