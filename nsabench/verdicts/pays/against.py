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
from nsabench.verdicts.statistics import Ratio
from nsabench.verdicts.verdict import Key, TooFewRounds, has, paired_ratio


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
            try:
                ratio = paired_ratio(timings[best.case_id, best.implementation], timings[key])
            except TooFewRounds:
                continue
            found[key] = Against(best.implementation, ratio.widened(clock_spread([row.conditions])))
    return found
