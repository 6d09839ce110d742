"""Make the records that the checks read, and give them the statuses that the checks find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from nsabench import ops
from nsabench.checks.cases import by_case
from nsabench.checks.finding import Effect, Finding
from nsabench.model.case import Case
from nsabench.model.log import WriterSession
from nsabench.model.measurement import Bursts, Conditions, Observation, Samples
from nsabench.model.plan import Plan
from nsabench.model.record import Comparison, Record
from nsabench.model.vocabulary import Reference, Regime, Role, Status
from nsabench.ops import Work
from nsabench.verdicts.attempts import CaseState
from nsabench.verdicts.statistics import quantiles

STATUS_OF = {Effect.WRONG: Status.WRONG, Effect.IMPLAUSIBLE: Status.IMPLAUSIBLE}
# Fields with the same name in a record and in an observation.
OBSERVED = (
    *("status", "reason", "mae", "max_abs_err", "rel_l2", "worst_row", "worst_row_at"),
    *("rows_compared", "compile_s", "peak_mem_bytes", "config"),
)


def make_records(plan: Plan, session: WriterSession, state: CaseState) -> list[Record]:
    """Return the records of a case, without verdicts. `session` has the device and its ceilings."""
    planned = plan.by_id[state.case_id]
    case, described = planned.case, session.described
    capability = described.device.compute_capability
    same = {
        "run_id": plan.run_id,
        "case_id": case.id,
        "op": case.op,
        "direction": case.direction,
        "dtype": case.dtype,
        "device": plan.device,
        "shape": case.shape,
        "length": ops.get(case.op).length(ops.sizes(case)),
        "distribution": case.distribution,
        "mode": case.mode,
        "tolerances": case.tolerances,
        "gpu_name": described.device.name or "",
        "sm": f"sm_{capability.replace('.', '')}" if capability else "",
        "torch": described.software.torch,
        "triton": described.software.triton,
        "cuda": described.software.torch_cuda,
    }
    works: dict[str, Work] = {}  # by the op that is computed, usually the op of the case
    offset_ms = session.ceilings.timer_offset_ms
    records = []
    for observation in state.observations:
        info = plan.info(case.op, observation.implementation)
        if info.computes not in works:
            works[info.computes] = ops.computed_work(case, info.computes)
        work = works[info.computes]
        conditions = state.conditions.get(observation.attempt) or Conditions()
        records.append(
            Record(
                **same,  # type: ignore[arg-type]
                **_copy_observation(observation),
                implementation=info.name,
                role=info.role,
                attempt=observation.attempt,
                bytes_min=work.bytes_min,
                flops=work.flops,
                computes=info.computes,
                kind=info.kind if info.role is Role.BASELINE else None,
                package=info.origin.package,
                package_version=info.origin.version,
                licence=info.origin.licence,
                caught_by=info.caught_by,
                sm_clock_mhz_min=conditions.sm_clock_mhz_min,
                sm_clock_mhz_max=conditions.sm_clock_mhz_max,
                clock_event_reasons=", ".join(conditions.clock_event_reasons),
                comparisons=tuple(_make_comparisons(plan.run_id, case, observation, offset_ms)),
                source=info.source,
                wraps=info.wraps,
                needs_order=info.needs_order,
                alongside=info.name in planned.alongside,
                conditions=conditions,
                observation=observation,
            )
        )
    return records


def _copy_observation(observation: Observation) -> dict[str, Any]:
    timed = bool(observation.samples.time_ms)
    # A host time of 0 means that no spin outlasted the call, which may have waited for the device.
    host = _find_quantiles([us for us in observation.samples.host_us if us > 0])
    return {
        **{name: getattr(observation, name) for name in OBSERVED},
        "diagnosis": observation.diagnosis if observation.status is Status.WRONG else "",
        "notes": "; ".join(observation.notes),
        "host_p20_us": host[0],
        "host_us": host[1],
        "host_p80_us": host[2],
        "launches": observation.launches if timed else None,
        "kernels_us": observation.kernels_us if timed else None,
    }


def _make_comparisons(
    run_id: str, case: Case, observation: Observation, offset_ms: float | None
) -> Iterator[Comparison]:
    own = Regime.from_mode(case.mode)
    for regime in (own, Regime.QUEUE) if observation.status is Status.OK else ():
        times = observation.timings(regime).time_ms
        p20, median, p80 = _find_quantiles(times)
        if median is None:
            continue
        # The offset of the timer is unknown for a replay or a burst.
        known = regime is Regime.DEVICE and offset_ms is not None
        yield Comparison(
            run_id=run_id,
            case_id=case.id,
            implementation=observation.implementation,
            regime=regime,
            reference=Reference.BASELINE,
            median_ms=median,
            net_ms=max(median - (offset_ms or 0.0), 0.0) if known else None,
            p20_ms=p20,
            p80_ms=p80,
            n_samples=len(times),
        )


def _find_quantiles(times: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    if not times:
        return None, None, None
    p20, median, p80 = quantiles(times, 0.2, 0.5, 0.8)
    return p20, median, p80


def set_failed(record: Record, observation: Observation) -> Record:
    """Return the record with the status of a failed observation, and without comparisons."""
    return replace(record, **_copy_observation(observation), comparisons=())


def without_times(observation: Observation, status: Status, reason: str) -> Observation:
    update = {"status": status, "reason": reason, "samples": Samples(), "bursts": Bursts()}
    return observation.model_copy(update=update)


def apply_findings(records: Sequence[Record], findings: Sequence[Finding]) -> list[Record]:
    """Return the records. A record that was ok gets the status of a finding about all regimes."""
    grave = by_case(f for f in findings if f.effect in STATUS_OF and f.regime is None)
    applied = []
    for record in records:
        against = (f for f in grave.get(record.case_id, ()) if f.concerns(record))
        finding = next(against, None) if record.status is Status.OK else None
        if finding is not None:
            assert record.observation is not None
            status = STATUS_OF[finding.effect]
            record = set_failed(record, without_times(record.observation, status, finding.sentence))
        applied.append(record)
    return applied
