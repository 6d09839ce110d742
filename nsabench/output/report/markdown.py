"""Writes selection_report.md: plain text, by which two runs can be compared."""

from typing import Any

from nsabench.output import tables
from nsabench.output.document import Ours, TableBlock, as_markdown, number, table_as_markdown
from nsabench.output.report import tables as report_tables
from nsabench.output.report.facts import Facts, commands, machine
from nsabench.output.standing import tally_of_controls
from nsabench.output.templates import environment
from nsabench.text import code, markdown

MOST = 40  # lines of a list of problems; records.parquet holds all


def render(facts: Facts) -> str:
    templates = environment(finalize=_make_safe)
    templates.filters.update(
        code=lambda text: Ours(code(text)),
        form=number,
        table=lambda table: Ours(table_as_markdown(table)),
        block=lambda block: Ours(as_markdown(block)),
    )
    controls = {r.implementation for r in facts.controls}
    findings = facts.results.findings
    lines = [(name, line or "not readable") for name, line in machine(facts.environment)]
    return templates.get_template("selection_report.md.j2").render(
        facts=facts,
        controls=tally_of_controls(facts.records),
        machine=TableBlock("Environment", ("what", "value"), lines),
        shards=list(report_tables.shards(facts)) if facts.plan.shards else [],
        matrices=list(dict.fromkeys((m.name, m.sha256[:12]) for m in facts.plan.matrices)),
        cases=list(tables.candidates(facts.records, wide=True)),
        findings=[f for f in findings if f.implementation not in controls or not f.case_id],
        most=MOST,
        unproven=facts.results.unproven,
        commands=commands(facts),
    )


def _make_safe(value: Any) -> Any:
    return markdown(value) if isinstance(value, str) and not isinstance(value, Ours) else value
