"""What the checks see of a log: a row an implementation and case, and what they made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nsabench import ops
from nsabench.checks.cases import by_case
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.row import Row
from nsabench.model.case import Case
from nsabench.model.measurement import Bursts, Conditions, Observation, Samples
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Role, Status
from nsabench.ops import Work
from nsabench.verdicts.attempts import CaseState
from nsabench.verdicts.statistics import quantile

STATUS_OF = {Effect.WRONG: Status.WRONG, Effect.IMPLAUSIBLE: Status.IMPLAUSIBLE}


def of_states(plan: Plan, states: Iterable[CaseState]) -> list[Row]:
    return [
        row
        for state in states
        for row in of_case(
            plan, plan.by_id[state.case_id].case, state.observations, state.conditions
        )
    ]


def of_case(
    plan: Plan,
    case: Case,
    observations: Sequence[Observation],
    conditions: Mapping[int, Conditions],
) -> list[Row]:
    """Rows of one case. `conditions`: by attempt."""
    alongside = plan.by_id[case.id].alongside
    length = ops.get(case.op).length(ops.sizes(case))
    works: dict[str, Work] = {}  # by what is computed: nearly all compute the same
    rows = []
    for observation in observations:
        info = plan.info(case.op, observation.implementation)
        samples = observation.samples
        if info.computes not in works:
            works[info.computes] = ops.computed_work(case, info.computes)
        work = works[info.computes]
        rows.append(
            Row(
                case_id=case.id,
                op=case.op,
                implementation=observation.implementation,
                role=info.role,
                caught_by=info.caught_by,
                wraps=info.wraps,
                source=info.source,
                computes=info.computes,
                kind=info.kind if info.role is Role.BASELINE else None,
                alongside=observation.implementation in alongside,
                status=observation.status,
                reason=observation.reason,
                dtype=case.dtype,
                shape=case.shape,
                length=length,
                direction=case.direction,
                distribution=case.distribution,
                streams=case.streams,
                mode=case.timing.mode,
                l2=case.l2,
                bytes_min=work.bytes_min,
                flops=work.flops,
                attempt=observation.attempt,
                mae=observation.mae,
                rel_l2=observation.rel_l2,
                worst_row=observation.worst_row,
                worst_row_at=observation.worst_row_at,
                mae_tolerance=case.tolerances.mae,
                rel_l2_ratio=case.tolerances.rel_l2_ratio,
                median_ms=_median(samples.time_ms),
                host_us=_median(held(samples)),
                queued_ms=_median(observation.bursts.time_ms),
                launches=observation.launches,
                kernels_us=observation.kernels_us,
                n_samples=len(samples.time_ms),
                median_mcycles=_mcycles(samples),
                escaped_share=_share([x > 0 for x in samples.escaped_ms], 0.0),
                gap_hidden_share=_share(samples.gap_hidden, 1.0),
                conditions=conditions.get(observation.attempt) or Conditions(),
            )
        )
    return rows


def without_times(observation: Observation, row: Row) -> Observation:
    """The observation that a check made a failure of: one has no times, and keeps its errors."""
    return observation.model_copy(
        update={
            "status": row.status,
            "reason": row.reason,
            "samples": Samples(),
            "bursts": Bursts(),
        }
    )


def _median(times: Sequence[float]) -> float | None:
    return quantile(times, 0.5) if times else None


def _mcycles(samples: Samples) -> float | None:
    cycles = [
        t * mhz / 1e3 for t, mhz in zip(samples.time_ms, samples.sm_clock_mhz, strict=False) if mhz
    ]
    return _median(cycles)


def _share(flags: Sequence[bool], default: float) -> float:
    return sum(flags) / len(flags) if flags else default


def with_findings(rows: Sequence[Row], findings: Sequence[Finding]) -> list[Row]:
    """Rows that a check found wrong or implausible are no longer ok, for that reason."""
    by_case_id = by_case(f for f in findings if f.effect in STATUS_OF)
    return [_with_finding(row, by_case_id.get(row.case_id, [])) for row in rows]


def _with_finding(row: Row, findings: Sequence[Finding]) -> Row:
    if row.status is Status.OK:
        for finding in findings:
            if finding.concerns(row) and finding.regime is None:
                return replace(row, status=STATUS_OF[finding.effect], reason=finding.sentence)
    return row


def held(samples: Samples) -> list[float]:
    """Host times of the calls that were made while the device was held: others may have waited."""
    return [time for time in samples.host_us if time > 0]
