"""From plan and journal to checked, judged records: the rows of records.parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nsabench import ops
from nsabench.assessment import checks, doubts
from nsabench.assessment.checks import controls, ordering, parity, roofline
from nsabench.assessment.checks.cases import by_case
from nsabench.assessment.checks.finding import Effect, Finding
from nsabench.assessment.checks.group import Group
from nsabench.assessment.checks.limits import Limits, least
from nsabench.assessment.checks.row import Row
from nsabench.assessment.statistics import quantile
from nsabench.assessment.verdict import Judgement, Key, judge, look_again
from nsabench.errors import UsageError
from nsabench.model.case import Case
from nsabench.model.journal import Contents, Entry, Header
from nsabench.model.measurement import Bursts, Ceilings, Conditions, Outcome, Samples
from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Catch, Mode, PassName, Role, Status

STATUS_OF = {Effect.WRONG: Status.WRONG, Effect.IMPLAUSIBLE: Status.IMPLAUSIBLE}


@dataclass(frozen=True)
class Results:
    """What is known after a run: records and samples as Parquet will hold them, and findings."""

    records: list[Record]
    samples: dict[Key, tuple[int, Samples]]
    findings: list[Finding]
    judgements: dict[Key, Judgement]


@dataclass(frozen=True)
class Assessed:
    """What the checks made of a journal. `first_look`: the verdicts before any second process."""

    plan: Plan
    header: Header
    ceilings: Ceilings
    limits: Limits
    outcomes: dict[Key, Outcome]
    rows: list[Row]
    findings: list[Finding]
    catches: dict[Key, Catch]
    first_look: dict[Key, Judgement]

    def judgements(self, contents: Contents) -> dict[Key, Judgement]:
        """The verdicts, after what other processes saw of the same cases."""
        return self._look_again(
            self._checked(contents, PassName.SECOND_LOOK),
            self._checked(contents, PassName.ISOLATED_BASELINES),
        )

    def _look_again(
        self, second_looks: Mapping[str, Entry], isolated_baselines: Mapping[str, Entry]
    ) -> dict[Key, Judgement]:
        samples = {key: o.samples for key, o in self.outcomes.items()}
        return look_again(
            self.first_look, samples, second_looks, isolated_baselines, self.plan.margin
        )

    def _checked(self, contents: Contents, name: PassName) -> dict[str, Entry]:
        """The entries of a later pass by case id, held to what those of the first look are."""
        return {
            case_id: self._checked_entry(entry) for case_id, entry in contents.by_case(name).items()
        }

    def _checked_entry(self, entry: Entry) -> Entry:
        case = self.plan.by_id[entry.case_id].case
        rows = _rows_of(self.plan, case, entry.outcomes, entry.conditions)
        findings = [f for c in (parity, ordering, roofline) for f in c.check(rows, self.limits)]
        outcomes = [
            outcome if row.status is outcome.status else _failed(outcome, row)
            for row, outcome in zip(_with_findings(rows, findings), entry.outcomes, strict=True)
        ]
        return entry.model_copy(update={"outcomes": outcomes})

    def results(self, contents: Contents) -> Results:
        """Records and samples as Parquet will hold them."""
        second_looks = self._checked(contents, PassName.SECOND_LOOK)
        judgements = self._look_again(
            second_looks, self._checked(contents, PassName.ISOLATED_BASELINES)
        )
        notes = by_case(f for f in self.findings if f.effect is Effect.NOTE)
        of_times = doubts.of_findings(self.findings)
        failed = _failed_again(self.rows, second_looks)
        outcomes = {**self.outcomes, **failed}
        unproven: dict[Group, list[str]] = {}
        for lack in controls.unproven(self.rows, self.catches):
            unproven.setdefault(lack.group, []).append(lack.check)
        records = [
            _record(
                self,
                _after(row, failed.get((row.case_id, row.implementation))),
                outcomes[row.case_id, row.implementation],
                judgements.get((row.case_id, row.implementation), Judgement()),
                notes.get(row.case_id, []),
                doubts.about(row, of_times),
                unproven.get(Group.of(row), []) if row.role is Role.CANDIDATE else [],
            )
            for row in self.rows
        ]
        samples = {key: (o.session, o.samples) for key, o in self.outcomes.items()}
        return Results(records, samples, self.findings, judgements)


def assemble(plan: Plan, contents: Contents) -> Results:
    """Apply the checks to what the workers measured, then judge the candidates: of a merged run
    shard by shard, each by its own ceilings and held to its own controls."""
    if plan.shards:
        from nsabench.assessment import merged

        return merged.assemble(plan, contents)
    return assess(plan, contents).results(contents)


def assess(plan: Plan, contents: Contents, known: Sequence[Finding] = ()) -> Assessed:
    """Apply the checks. known: what speaks against the run beside them. Raises `UsageError` when
    the journal is not one of this plan."""
    belongs(plan, contents)
    ops.refuse_other(plan)
    if not contents.headers:
        raise UsageError(
            "the journal has no header: nothing was measured", "go on with --resume RUN."
        )
    header, ceilings = contents.headers[0], contents.ceilings
    limits = doubts.limits(contents)
    entries = contents.of(PassName.FIRST_LOOK)
    outcomes = {(e.case_id, o.implementation): o for e in entries for o in e.outcomes}
    rows = _rows(plan, entries)
    findings, catches = checks.judge_all(rows, limits)
    findings = [*findings, *known]
    rows = _with_findings(rows, findings)
    first_look = judge(rows, {key: o.samples for key, o in outcomes.items()}, findings)
    return Assessed(
        plan=plan,
        header=header,
        ceilings=ceilings,
        limits=limits,
        outcomes=outcomes,
        rows=rows,
        findings=findings,
        catches=catches,
        first_look=first_look,
    )


def belongs(plan: Plan, contents: Contents) -> None:
    """Raises `UsageError` when the journal is not one of this plan, as it was when it was begun."""
    names = {planned.id: set(planned.implementations) for planned in plan.cases}
    if plan.canary is not None:
        names.setdefault(plan.canary.id, set(plan.canary.implementations))
    wrong = ""
    if any(line.run_id not in plan.openings for line in contents.openings):
        wrong = f"is not of run {plan.run_id}"
    elif any(
        line.plan_sha256 not in ("", plan.openings[line.run_id]) for line in contents.openings
    ):
        wrong = "was written under another plan than plan.yaml holds now"
    for entry in contents.entries:
        if not {o.implementation for o in entry.outcomes} <= names.get(entry.case_id, set()):
            wrong = f"holds case {entry.case_id}, which is not in the plan like that"
    if wrong:
        raise UsageError(
            f"the journal {wrong}: plan.yaml and journal.jsonl do not belong together",
            "restore the run folder, or start a new run.",
        )


def _rows(plan: Plan, entries: Sequence[Entry]) -> list[Row]:
    return [
        row
        for entry in entries
        for row in _rows_of(plan, plan.by_id[entry.case_id].case, entry.outcomes, entry.conditions)
    ]


def _rows_of(
    plan: Plan, case: Case, outcomes: Sequence[Outcome], conditions: Mapping[int, Conditions]
) -> list[Row]:
    """Rows of one case. `conditions`: by session."""
    work = ops.work(case)
    alongside = plan.by_id[case.id].alongside
    rows = []
    for outcome in outcomes:
        info = plan.info(case.op, outcome.implementation)
        samples = outcome.samples
        rows.append(
            Row(
                case_id=case.id,
                op=case.op,
                implementation=outcome.implementation,
                role=info.role,
                caught_by=info.caught_by,
                wraps=info.wraps,
                alongside=outcome.implementation in alongside,
                status=outcome.status,
                reason=outcome.reason,
                dtype=case.dtype,
                shape=case.shape,
                length=ops.get(case.op).length(ops.sizes(case)),
                direction=case.direction,
                distribution=case.distribution,
                streams=case.streams,
                mode=case.timing.mode,
                bytes_min=work.bytes_min,
                flops=work.flops,
                session=outcome.session,
                mae=outcome.mae,
                rel_l2=outcome.rel_l2,
                worst_row=outcome.worst_row,
                worst_row_at=outcome.worst_row_at,
                mae_tolerance=case.tolerances.mae,
                rel_l2_ratio=case.tolerances.rel_l2_ratio,
                median_ms=quantile(samples.time_ms, 0.5) if samples.time_ms else None,
                host_us=_quantiles(_held(samples))[1],
                queued_ms=_quantiles(outcome.bursts.time_ms)[1],
                n_samples=len(samples.time_ms),
                median_mcycles=_mcycles(samples),
                escaped_share=_share([x > 0 for x in samples.escaped_ms], 0.0),
                gap_hidden_share=_share(samples.gap_hidden, 1.0),
                conditions=conditions.get(outcome.session, Conditions()),
            )
        )
    return rows


def _failed(outcome: Outcome, row: Row) -> Outcome:
    """The outcome that a check made a failure of: one has no times, and keeps its errors."""
    return outcome.model_copy(
        update={
            "status": row.status,
            "reason": row.reason,
            "samples": Samples(),
            "bursts": Bursts(),
        }
    )


def _failed_again(rows: Sequence[Row], second_looks: Mapping[str, Entry]) -> dict[Key, Outcome]:
    """What a second process found failing of the candidates that the first found ok."""
    ok = {
        (row.case_id, row.implementation)
        for row in rows
        if row.role is Role.CANDIDATE and row.status is Status.OK
    }
    return {
        (case_id, outcome.implementation): outcome
        for case_id, second in second_looks.items()
        for outcome in second.outcomes
        if outcome.status not in BENIGN and (case_id, outcome.implementation) in ok
    }


def _after(row: Row, failed: Outcome | None) -> Row:
    """The row, which is not ok where a second process found it failing."""
    if failed is None:
        return row
    return replace(row, status=failed.status, reason=f"in a second process: {failed.reason}")


def _mcycles(samples: Samples) -> float | None:
    cycles = [
        t * mhz / 1e3 for t, mhz in zip(samples.time_ms, samples.sm_clock_mhz, strict=False) if mhz
    ]
    return quantile(cycles, 0.5) if cycles else None


def _share(flags: Sequence[bool], default: float) -> float:
    return sum(flags) / len(flags) if flags else default


def _with_findings(rows: Sequence[Row], findings: Sequence[Finding]) -> list[Row]:
    """Rows that a check found wrong or implausible are no longer ok, for that reason."""
    by_case_id = by_case(f for f in findings if f.effect in STATUS_OF)
    return [_with_finding(row, by_case_id.get(row.case_id, [])) for row in rows]


def _with_finding(row: Row, findings: Sequence[Finding]) -> Row:
    if row.status is Status.OK:
        for finding in findings:
            if finding.concerns(row):
                return replace(row, status=STATUS_OF[finding.effect], reason=finding.sentence)
    return row


def _record(
    assessed: Assessed,
    row: Row,
    outcome: Outcome,
    judgement: Judgement,
    noted: Sequence[Finding],
    doubt: str,
    unproven: Sequence[str],
) -> Record:
    timed = outcome.samples.time_ms if row.status is Status.OK else []
    floor = least(row, assessed.limits)
    median = quantile(timed, 0.5) if timed else None
    host = _quantiles(_held(outcome.samples) if timed else [])
    queued = _quantiles(outcome.bursts.time_ms if timed else [])
    notes = [f.sentence for f in noted if f.concerns(row)]
    plan, described = assessed.plan, assessed.header.described
    software, device = described.software, described.device
    return Record(
        run_id=plan.run_id,
        case_id=row.case_id,
        op=row.op,
        implementation=row.implementation,
        role=row.role,
        direction=row.direction,
        dtype=row.dtype,
        device=plan.device,
        shape=row.shape,
        length=row.length,
        distribution=row.distribution,
        streams=row.streams,
        mode=row.mode,
        status=row.status,
        reason=row.reason or judgement.why,
        diagnosis=outcome.diagnosis if row.status is Status.WRONG else "",
        notes="; ".join([*outcome.notes, *notes]),
        mae=outcome.mae,
        max_abs_err=outcome.max_abs_err,
        rel_l2=outcome.rel_l2,
        worst_row=outcome.worst_row,
        worst_row_at=outcome.worst_row_at,
        median_ms=median,
        device_ms=_device_ms(assessed, row, median),
        p20_ms=quantile(timed, 0.2) if timed else None,
        p80_ms=quantile(timed, 0.8) if timed else None,
        host_us=host[1],
        host_p20_us=host[0],
        host_p80_us=host[2],
        queued_ms=queued[1],
        queued_p20_ms=queued[0],
        queued_p80_ms=queued[2],
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
        unproven=", ".join(unproven),
        time_doubt=doubt if timed else "",
        caught_by=row.caught_by,
        caught=assessed.catches.get((row.case_id, row.implementation)),
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


def _held(samples: Samples) -> list[float]:
    """Host times of the calls that were made while the device was held: others may have waited."""
    return [time for time in samples.host_us if time > 0]


def _quantiles(times: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """20 %, 50 % and 80 %."""
    if not times:
        return None, None, None
    return quantile(times, 0.2), quantile(times, 0.5), quantile(times, 0.8)


def _device_ms(assessed: Assessed, row: Row, median: float | None) -> float | None:
    offset = assessed.ceilings.timer_offset_ms
    case = assessed.plan.by_id[row.case_id].case
    # A replayed graph reaches its first kernel on another way, whose length is not known.
    if median is None or offset is None or case.timing.mode is Mode.GRAPH:
        return None
    return max(median - offset, 0.0)
