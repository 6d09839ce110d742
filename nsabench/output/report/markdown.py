"""selection_report.md: the same facts as plain text that two runs can be compared by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nsabench import labels
from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime, Status
from nsabench.output import grouped
from nsabench.output.document import Name, Ours, Table, number, table_as_markdown
from nsabench.output.report import shards, statistics
from nsabench.output.report.environment import commands, machine
from nsabench.output.report.facts import Facts
from nsabench.output.standing import tally_of_controls
from nsabench.output.templates import environment
from nsabench.text import code, markdown
from nsabench.verdicts import pays
from nsabench.verdicts.caution import beside

MOST = 40  # lines of a list of problems; records.parquet holds all


def render(facts: Facts) -> str:
    controls = {r.implementation for r in facts.controls}
    findings = facts.results.findings
    lines = [(name, line or "not readable") for name, line in machine(facts.environment)]
    by_key = {r.key: r for r in facts.records}
    times = ("ms", "queued", "host, µs", "best baseline", "its ms", "its queued")
    columns = ("case", "candidate", *times, Ours("speed-up [95 %]"), "verdict", "in the queue")
    rows = [_case(r, by_key.get((r.case_id, r.best_baseline))) for r in facts.candidates]
    return template(
        "selection_report.md.j2",
        facts=facts,
        said=pays.said,
        controls=tally_of_controls(facts.records),
        machine=Table("Environment", ("what", "value"), lines),
        shards=shards.of_run(facts) if facts.plan.shards else None,
        # A file holds one for each of its documents.
        matrices=list(dict.fromkeys((m.name, m.sha256[:12]) for m in facts.plan.matrices)),
        parity=_parity(facts),
        distributions=statistics.by_distribution(facts),
        cases=Table("Cases", columns, rows),
        lengths=statistics.by_length(facts),
        findings=[f for f in findings if f.implementation not in controls or not f.case_id],
        most=MOST,
        commands=commands(facts),
    )


def template(name: str, **context: object) -> str:
    """Render a template of Markdown. Every text is foreign, and is shown but not obeyed."""
    templates = environment(finalize=_shown)
    templates.filters.update(
        code=lambda text: Ours(code(text)),
        form=number,
        table=lambda table: Ours(table_as_markdown(table)),
        section=lambda table: Ours(f"## {markdown(table.title)}\n\n{table_as_markdown(table)}"),
    )
    return templates.get_template(name).render(context)


def _shown(value: Any) -> Any:
    return markdown(value) if isinstance(value, str) and not isinstance(value, Ours) else value


def _parity(facts: Facts) -> Table:
    groups = grouped(facts.compared, lambda r: (r.implementation, r.role, r.dtype))
    rows = [
        (
            Name(name),
            role,
            dtype,
            str(sum(r.mae is not None for r in records)),
            str(sum(r.status is Status.WRONG for r in records)),
            _worst(r.mae for r in records),
            _worst(r.rel_l2 for r in records),
            _worst(r.worst_row for r in records),
        )
        for (name, role, dtype), records in groups.items()
    ]
    errors = ("worst MAE", "worst relative L2", "of one row")
    return Table("Parity", ("implementation", "role", "dtype", "compared", "wrong", *errors), rows)


def _worst(errors: Iterable[float | None]) -> str:
    return number(max((error for error in errors if error is not None), default=None), ".2e")


def _case(r: Record, baseline: Record | None) -> Sequence[str]:
    return (
        labels.case(r),
        Name(r.implementation),
        number(r.median_ms, ".4g"),
        number(r.queued_ms, ".4g"),
        number(r.host_us, ".0f"),
        Name(r.best_baseline) if r.best_baseline else "–",
        number(baseline.median_ms if baseline else None, ".4g"),
        number(baseline.queued_ms if baseline else None, ".4g"),
        Ours(f"{r.speedup:.3f} [{r.speedup_lo:.3f}, {r.speedup_hi:.3f}]") if r.speedup else "–",
        # Without a verdict, the reason takes its place.
        _verdict(r) or f"{r.status}: {r.why}",
        _in_queue(r),
    )


def _verdict(record: Record) -> str:
    if not record.verdict:
        return ""
    lacking = f" (unproven: {record.unproven})" if record.unproven_verdict else ""
    return f"{record.regime}: {record.verdict}{lacking}{_bear(record, record.regime)}"


def _bear(record: Record, regime: Regime) -> str:
    said = beside(record, regime)
    return f" ({said})" if said else ""


def _in_queue(record: Record) -> str:
    """The verdict against its best baseline in the queue, which may be another."""
    found = record.compared(Regime.QUEUE)
    if found is None or not found.verdict:
        return "–"
    if found.ratio is None:
        return f"queue: {found.verdict}"
    interval = f"{found.lo:.3f} to {found.hi:.3f}"
    against = f"against {found.against}{_bear(record, Regime.QUEUE)}"
    return f"queue: {found.verdict}, {found.ratio:.3f} ({interval}) {against}"
