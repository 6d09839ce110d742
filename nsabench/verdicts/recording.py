"""The record of an implementation on a case, as records.parquet holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from nsabench.checks.finding import Finding
from nsabench.checks.limits import Limits, least
from nsabench.checks.row import Row
from nsabench.model.log import Session
from nsabench.model.measurement import Ceilings, Observation
from nsabench.model.plan import Plan
from nsabench.model.record import Comparison, Record
from nsabench.model.vocabulary import Catch, Mode, Reference, Regime, Status
from nsabench.verdicts.pays.against import Against
from nsabench.verdicts.rows import held
from nsabench.verdicts.statistics import quantiles
from nsabench.verdicts.verdict import Judgement


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
    observation: Observation,
    *,
    judged: Mapping[Regime, Judgement],
    noted: Sequence[Finding],
    doubt: str,
    unproven: Sequence[str],
    caution: str,
    catch: Catch | None,
    against: Mapping[Regime, Against],
) -> Record:
    """judged: of a candidate. noted: what was found of its case. doubt: why its time decides
    nothing. unproven: checks behind its verdict that were not shown to work. caution: what to bear
    in mind beside the verdict. against: the best alternative beside it."""
    timed = observation.samples.time_ms if row.status is Status.OK else []
    floor = least(row, run.limits)
    p20, median, p80 = _quantiles(timed)
    host = _quantiles(held(observation.samples) if timed else [])
    queued = _quantiles(observation.bursts.time_ms if timed else [])
    notes = [f.sentence for f in noted if f.concerns(row)]
    software, device = run.session.described.software, run.session.described.device
    origin = run.plan.info(row.op, row.implementation).origin
    run_id = run.run_id or run.plan.run_id
    against = against if row.status is Status.OK else {}
    return Record(
        run_id=run_id,
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
        reason=row.reason,
        diagnosis=observation.diagnosis if row.status is Status.WRONG else "",
        notes="; ".join([*observation.notes, *notes]),
        mae=observation.mae,
        max_abs_err=observation.max_abs_err,
        rel_l2=observation.rel_l2,
        worst_row=observation.worst_row,
        worst_row_at=observation.worst_row_at,
        rows_compared=observation.rows_compared,
        rows_left_out=observation.rows_left_out,
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
        launches=observation.launches if timed else None,
        kernels_us=observation.kernels_us if timed else None,
        n_samples=len(timed),
        attempt=row.attempt,
        bytes_min=row.bytes_min,
        flops=row.flops,
        roofline_fraction=floor.ms / median if floor and median else None,
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
        compile_s=observation.compile_s,
        peak_mem_bytes=observation.peak_mem_bytes,
        config=observation.config,
        sm_clock_mhz_min=row.conditions.sm_clock_mhz_min,
        sm_clock_mhz_max=row.conditions.sm_clock_mhz_max,
        clock_event_reasons=", ".join(row.conditions.clock_event_reasons),
        gpu_name=device.name or "",
        sm=f"sm_{device.compute_capability.replace('.', '')}" if device.compute_capability else "",
        torch=software.torch,
        triton=software.triton,
        cuda=software.torch_cuda,
        comparisons=tuple(_comparisons(run_id, row, judged, against)),
    )


def _comparisons(
    run_id: str, row: Row, judged: Mapping[Regime, Judgement], against: Mapping[Regime, Against]
) -> Iterator[Comparison]:
    make = partial(
        Comparison, run_id=run_id, case_id=row.case_id, implementation=row.implementation
    )
    for regime, judgement in judged.items():
        yield make(
            regime=regime,
            reference=Reference.BASELINE,
            against=judgement.best_baseline,
            ratio=judgement.speedup,
            lo=judgement.speedup_lo,
            hi=judgement.speedup_hi,
            verdict=judgement.verdict,
            reason=judgement.why,
        )
    for regime, best in against.items():
        yield make(
            regime=regime,
            reference=Reference.ALTERNATIVE,
            against=best.alternative,
            ratio=best.ratio.value,
            lo=best.ratio.lo,
            hi=best.ratio.hi,
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
