"""Clocks and neighbours: was the device its normal self, and alone, while a case was measured?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.assessment.best_baseline import best_baseline
from nsabench.assessment.checks.cases import by_case
from nsabench.assessment.checks.finding import Effect, Finding
from nsabench.assessment.checks.limits import Limits
from nsabench.assessment.checks.row import Row
from nsabench.machine.environment.nvml import THROTTLING
from nsabench.model.measurement import Conditions
from nsabench.model.vocabulary import Role

# A ratio in time and the same ratio in cycles differ only if the arms ran at different clocks.
RATIO_TOLERANCE = 0.02


def check(rows: Sequence[Row], limits: Limits) -> list[Finding]:
    """Cases that were throttled, shared, or that time and cycles tell differently."""
    cases = by_case(r for r in rows if r.timed_ms is not None)
    return [f for case in cases.values() for f in [*_conditions(case), *_cycles(case)]]


def _conditions(rows: list[Row]) -> Iterator[Finding]:
    for sentence in disturbances([row.conditions for row in rows]):
        yield Finding("clocks", Effect.INCONCLUSIVE, sentence, rows[0].case_id)


def disturbances(conditions: Sequence[Conditions]) -> Iterator[str]:
    """Why what was timed on one case under these conditions is not to be relied on."""
    reasons = sorted({x for c in conditions for x in c.clock_event_reasons} & THROTTLING)
    if reasons:
        sentence = f"the device was throttled while the case was measured: {', '.join(reasons)}"
        clocks = [c for c in conditions if c.sm_clock_mhz_min is not None]
        if clocks:
            low = min(c.sm_clock_mhz_min or 0 for c in clocks)
            high = max(c.sm_clock_mhz_max or 0 for c in clocks)
            sentence += f" (SM clock {low} to {high} MHz)"
        yield sentence
    others = max((c.competing_processes for c in conditions), default=0)
    if others:
        noun = "process" if others == 1 else "processes"
        yield f"{others} other {noun} computed on the device while the case was measured"


def _cycles(rows: list[Row]) -> Iterator[Finding]:
    for row in rows:
        if row.role is not Role.CANDIDATE or not row.median_mcycles:
            continue
        best = best_baseline(rows, beside=row)
        if best is None or not best.median_ms or not best.median_mcycles or not row.median_ms:
            continue
        in_time = best.median_ms / row.median_ms
        in_cycles = best.median_mcycles / row.median_mcycles
        if abs(in_time / in_cycles - 1) > RATIO_TOLERANCE:
            sentence = (
                f"the ratio to {best.implementation} is {in_time:.3f} in time and "
                f"{in_cycles:.3f} in cycles: the two ran at different clocks"
            )
            yield Finding("clocks", Effect.INCONCLUSIVE, sentence, row.case_id, row.implementation)
