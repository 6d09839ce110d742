"""From plan and journal to checked, judged records: the rows of records.parquet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nsabench import checks, ops
from nsabench.audit import datasheet
from nsabench.checks.controls import Catch, catch
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits, least
from nsabench.checks.row import Row
from nsabench.errors import UsageError
from nsabench.journal import Contents, Entry, Header
from nsabench.messages import Conditions, Outcome, Samples
from nsabench.plan import Plan
from nsabench.results.columns import SCHEMA_VERSION
from nsabench.timing.statistics import quantile
from nsabench.verdict import Judgement, Key, judge
from nsabench.words import Role, Status

_STATUS_OF = {Effect.WRONG: Status.WRONG, Effect.IMPLAUSIBLE: Status.IMPLAUSIBLE}


@dataclass(frozen=True)
class Results:
    """What is known after a run: records and samples as Parquet will hold them, and findings."""

    records: list[dict[str, Any]]
    samples: dict[Key, tuple[int, Samples]]
    findings: list[Finding]
    judgements: dict[Key, Judgement]


def assemble(plan: Plan, contents: Contents) -> Results:
    """Apply the checks to what the workers measured, then judge the candidates."""
    _belongs(plan, contents)
    header = contents.headers[0]
    sheet = datasheet.known(str(header.described.device.get("name") or ""))
    limits = Limits.measured(header.ceilings, sheet.limits() if sheet else None)
    outcomes = {(e.case_id, o.implementation): o for e in contents.entries for o in e.outcomes}
    rows = _rows(plan, contents.entries)
    findings = checks.run_all(rows, limits)
    rows = [_with_findings(row, findings) for row in rows]
    judgements = judge(
        rows,
        {key: o.samples for key, o in outcomes.items()},
        findings,
        {line.case_id: line for line in contents.confirmations},
    )
    cases: dict[str, list[Row]] = {}
    for row in rows:
        cases.setdefault(row.case_id, []).append(row)
    records = [
        _record(
            plan,
            header,
            row,
            outcomes[row.case_id, row.implementation],
            judgements.get((row.case_id, row.implementation), Judgement()),
            catch(row, cases[row.case_id], findings) if row.role is Role.CONTROL else None,
            findings,
            limits,
        )
        for row in rows
    ]
    taken = {key: (o.session, o.samples) for key, o in outcomes.items()}
    return Results(records, taken, findings, judgements)


def _belongs(plan: Plan, contents: Contents) -> None:
    """Raises `UsageError` when the journal is not one of this plan."""
    known = {planned.id: set(planned.implementations) for planned in plan.cases}
    wrong = ""
    if not contents.headers:
        wrong = "has no header"
    elif any(header.run_id != plan.run_id for header in contents.headers):
        wrong = f"is not of run {plan.run_id}"
    measured = [(e.case_id, e.outcomes) for e in contents.entries]
    measured += [(c.case_id, c.outcomes) for c in contents.confirmations]
    for case_id, outcomes in measured:
        if not {o.implementation for o in outcomes} <= known.get(case_id, set()):
            wrong = f"holds case {case_id}, which is not in the plan like that"
    if wrong:
        raise UsageError(
            f"the journal {wrong}: plan.yaml and journal.jsonl do not belong together",
            "restore the run folder, or start a new run.",
        )


def _rows(plan: Plan, entries: Sequence[Entry]) -> list[Row]:
    cases = {planned.id: planned.case for planned in plan.cases}
    rows = []
    for entry in entries:
        case = cases[entry.case_id]
        work = case.work
        for outcome in entry.outcomes:
            info = plan.info(case.op, outcome.implementation)
            taken = outcome.samples
            rows.append(
                Row(
                    case_id=entry.case_id,
                    op=case.op,
                    implementation=outcome.implementation,
                    role=info.role,
                    caught_by=info.caught_by,
                    status=outcome.status,
                    reason=outcome.reason,
                    dtype=case.dtype,
                    shape=case.shape,
                    length=ops.get(case.op).length(case.sizes),
                    direction=case.direction,
                    distribution=case.distribution,
                    streams=case.streams,
                    bytes_min=work.bytes_min,
                    flops=work.flops,
                    session=outcome.session,
                    mae=outcome.mae,
                    rel_l2=outcome.rel_l2,
                    mae_tolerance=case.tolerances.mae,
                    rel_l2_ratio=case.tolerances.rel_l2_ratio,
                    median_ms=quantile(taken.time_ms, 0.5) if taken.time_ms else None,
                    median_mcycles=_mcycles(taken),
                    escaped_share=_share([x > 0 for x in taken.escaped_ms], 0.0),
                    gap_hidden_share=_share(taken.gap_hidden, 1.0),
                    conditions=entry.conditions.get(outcome.session, Conditions()),
                )
            )
    return rows


def _mcycles(taken: Samples) -> float | None:
    cycles = [
        t * mhz / 1e3 for t, mhz in zip(taken.time_ms, taken.sm_clock_mhz, strict=False) if mhz
    ]
    return quantile(cycles, 0.5) if cycles else None


def _share(flags: Sequence[bool], default: float) -> float:
    return sum(flags) / len(flags) if flags else default


def _with_findings(row: Row, findings: Sequence[Finding]) -> Row:
    """A row that a check found wrong or implausible is no longer ok, for that reason."""
    if row.status is not Status.OK:
        return row
    for finding in findings:
        status = _STATUS_OF.get(finding.effect)
        if status and finding.case_id and finding.concerns(row.case_id, row.implementation):
            return replace(row, status=status, reason=finding.sentence)
    return row


def _record(
    plan: Plan,
    header: Header,
    row: Row,
    outcome: Outcome,
    judgement: Judgement,
    became: Catch | None,
    findings: Sequence[Finding],
    limits: Limits,
) -> dict[str, Any]:
    timed = outcome.samples.time_ms if row.status is Status.OK else []
    floor = least(row, limits)
    median = quantile(timed, 0.5) if timed else None
    notes = [
        *outcome.notes,
        *(
            f.sentence
            for f in findings
            if f.effect is Effect.NOTE and f.case_id and f.concerns(row.case_id, row.implementation)
        ),
    ]
    return {
        "run_id": plan.run_id,
        "case_id": row.case_id,
        "op": row.op,
        "implementation": row.implementation,
        "role": row.role.value,
        "direction": row.direction.value,
        "dtype": row.dtype.value,
        "device": plan.device,
        **row.shape,
        "length": row.length,
        "distribution": row.distribution,
        "streams": row.streams,
        "status": row.status.value,
        "reason": row.reason or judgement.why,
        "diagnosis": outcome.diagnosis,
        "notes": "; ".join(notes),
        "mae": outcome.mae,
        "max_abs_err": outcome.max_abs_err,
        "rel_l2": outcome.rel_l2,
        "median_ms": median,
        "p20_ms": quantile(timed, 0.2) if timed else None,
        "p80_ms": quantile(timed, 0.8) if timed else None,
        "n_samples": len(timed),
        "session": row.session,
        "bytes_min": row.bytes_min,
        "flops": row.flops,
        "roofline_fraction": floor.ms / median if floor and median else None,
        "best_baseline": judgement.best_baseline,
        "speedup": judgement.speedup,
        "speedup_lo": judgement.speedup_lo,
        "speedup_hi": judgement.speedup_hi,
        "verdict": judgement.verdict.value if judgement.verdict else None,
        "caught_by": row.caught_by,
        "caught": became.value if became else None,
        "compile_s": outcome.compile_s,
        "peak_mem_bytes": outcome.peak_mem_bytes,
        "config": outcome.config,
        "sm_clock_mhz_min": row.conditions.sm_clock_mhz_min,
        "sm_clock_mhz_max": row.conditions.sm_clock_mhz_max,
        "clock_event_reasons": ", ".join(row.conditions.clock_event_reasons),
        **_machine(header),
        "schema_version": SCHEMA_VERSION,
    }


def _machine(header: Header) -> dict[str, Any]:
    software, device = header.described.software, header.described.device
    capability = device.get("compute_capability")
    return {
        "gpu_name": device.get("name") or "",
        "sm": f"sm_{str(capability).replace('.', '')}" if capability else "",
        "torch": software.get("torch"),
        "triton": software.get("triton"),
        "cuda": software.get("torch.cuda"),
    }
