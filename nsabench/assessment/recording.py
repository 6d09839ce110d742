"""The record of an implementation on a case, as records.parquet holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from nsabench.assessment.checks.finding import Finding
from nsabench.assessment.checks.limits import Limits, least
from nsabench.assessment.checks.row import Row
from nsabench.assessment.pays.against import Against
from nsabench.assessment.rows import held
from nsabench.assessment.statistics import quantiles
from nsabench.assessment.verdict import NOT_JUDGED, Judgement
from nsabench.model.log import Session
from nsabench.model.measurement import Ceilings, Outcome
from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch, Mode, Regime, Status


class Run(Protocol):
    """What the records of a run share."""

    @property
    def plan(self) -> Plan: ...
    @property
    def session(self) -> Session: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def run_id(self) -> str: ...  # of the run that they are merged into; empty: of the plan's


def record(
    run: Run,
    row: Row,
    outcome: Outcome,
    judgement: Judgement,
    *,
    noted: Sequence[Finding],
    doubt: str,
    unproven: Sequence[str],
    caution: str,
    catch: Catch | None,
    against: Mapping[Regime, Against],
) -> Record:
    """judgement: none of what is no candidate. noted: what was found of its case. doubt: why its
    time decides nothing. unproven: checks behind its verdict that were not shown to work.
    caution: what to bear in mind beside the verdict. against: the best alternative beside it, in
    the regime of its samples and in the queue."""
    timed = outcome.samples.time_ms if row.status is Status.OK else []
    floor = least(row, run.limits)
    p20, median, p80 = _quantiles(timed)
    host = _quantiles(held(outcome.samples) if timed else [])
    queued = _quantiles(outcome.bursts.time_ms if timed else [])
    notes = [f.sentence for f in noted if f.concerns(row)]
    software, device = run.session.described.software, run.session.described.device
    in_queue = judgement.queue or NOT_JUDGED
    origin = run.plan.info(row.op, row.implementation).origin
    against = against if row.status is Status.OK else {}
    own, queue = against.get(Regime.of_samples(row.mode)), against.get(Regime.QUEUE)
    return Record(
        run_id=run.run_id or run.plan.run_id,
        case_id=row.case_id,
        op=row.op,
        implementation=row.implementation,
        role=row.role,
        direction=row.direction,
        dtype=row.dtype,
        device=run.plan.device,
        shape=row.shape,
        length=row.length,
        distribution=row.distribution,
        streams=row.streams,
        mode=row.mode,
        l2=row.l2,
        status=row.status,
        reason=row.reason or judgement.why,
        diagnosis=outcome.diagnosis if row.status is Status.WRONG else "",
        notes="; ".join([*outcome.notes, *notes]),
        mae=outcome.mae,
        max_abs_err=outcome.max_abs_err,
        rel_l2=outcome.rel_l2,
        worst_row=outcome.worst_row,
        worst_row_at=outcome.worst_row_at,
        rows_compared=outcome.rows_compared,
        rows_left_out=outcome.rows_left_out,
        median_ms=median,
        device_ms=_device_ms(run.session.ceilings, row, median),
        p20_ms=p20,
        p80_ms=p80,
        host_us=host[1],
        host_p20_us=host[0],
        host_p80_us=host[2],
        queued_ms=queued[1],
        queued_p20_ms=queued[0],
        queued_p80_ms=queued[2],
        launches=outcome.launches if timed else None,
        kernels_us=outcome.kernels_us if timed else None,
        n_samples=len(timed),
        session=row.session,
        bytes_min=row.bytes_min,
        flops=row.flops,
        roofline_fraction=floor.ms / median if floor and median else None,
        best_baseline=judgement.best_baseline,
        speedup=judgement.speedup,
        speedup_lo=judgement.speedup_lo,
        speedup_hi=judgement.speedup_hi,
        verdict=judgement.verdict,
        queue_best_baseline=in_queue.best_baseline,
        queue_speedup=in_queue.speedup,
        queue_speedup_lo=in_queue.speedup_lo,
        queue_speedup_hi=in_queue.speedup_hi,
        queue_verdict=in_queue.verdict,
        queue_reason=in_queue.why if row.status is Status.OK else "",
        best_alternative=own.alternative if own else "",
        against_alternative=own.ratio.value if own else None,
        against_alternative_lo=own.ratio.lo if own else None,
        against_alternative_hi=own.ratio.hi if own else None,
        queue_best_alternative=queue.alternative if queue else "",
        queue_against_alternative=queue.ratio.value if queue else None,
        queue_against_alternative_lo=queue.ratio.lo if queue else None,
        queue_against_alternative_hi=queue.ratio.hi if queue else None,
        computes=row.computes,
        kind=row.kind,
        package=origin.package,
        package_version=origin.version,
        licence=origin.licence,
        caution=caution,
        unproven=", ".join(unproven),
        time_doubt=doubt if timed else "",
        caught_by=row.caught_by,
        caught=catch,
        compile_s=outcome.compile_s,
        peak_mem_bytes=outcome.peak_mem_bytes,
        config=outcome.config,
        sm_clock_mhz_min=row.conditions.sm_clock_mhz_min,
        sm_clock_mhz_max=row.conditions.sm_clock_mhz_max,
        clock_event_reasons=", ".join(row.conditions.clock_event_reasons),
        gpu_name=device.name or "",
        sm=f"sm_{device.compute_capability.replace('.', '')}" if device.compute_capability else "",
        torch=software.torch,
        triton=software.triton,
        cuda=software.torch_cuda,
    )


def _quantiles(times: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """20 %, 50 % and 80 %."""
    if not times:
        return None, None, None
    p20, median, p80 = quantiles(times, 0.2, 0.5, 0.8)
    return p20, median, p80


def _device_ms(ceilings: Ceilings, row: Row, median: float | None) -> float | None:
    offset = ceilings.timer_offset_ms
    # A replayed graph reaches its first kernel on another way, whose length is not known.
    if median is None or offset is None or row.mode is Mode.GRAPH:
        return None
    return max(median - offset, 0.0)
