"""Write selection_report.md, in a form that a diff can compare, and a short summary."""

from dataclasses import replace
from typing import Any

from nsabench.output import answer, tables
from nsabench.output.document import (
    Ours,
    Sentence,
    TableBlock,
    as_markdown,
    number,
    table_as_markdown,
)
from nsabench.output.report import tables as report_tables
from nsabench.output.report.facts import Facts, commands, machine
from nsabench.output.standing import standings, tally_of_controls
from nsabench.output.templates import environment
from nsabench.text import code, markdown

MOST = 40  # lines of a list of problems; records.parquet holds all.
MOST_LINES = 60  # lines of a summary for a pull request.
MOST_OF_A_KIND = 8  # candidates, break-even lengths or failures in a summary.
LINES_AROUND = 11  # the title and head of a table, and the notes below it.


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
        standings=[(s, answer.list_findings(s, facts.decisions)) for s in standings(facts.records)],
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


def summarise(facts: Facts) -> str:
    """Return the answer of a run for a pull request, in at most `MOST_LINES` lines."""
    own, others = answer.split_candidates(facts.plan, facts.records)
    decisions = [] if facts.invalidating else facts.decisions
    lines = [
        f"# {markdown(facts.title)}",
        "",
        as_markdown(answer.describe_outcome(facts.plan, facts.results)),
        "",
    ]
    for standing in own[:MOST_OF_A_KIND]:
        found = markdown("; ".join(answer.list_findings(standing, decisions)))
        lines.append(f"- {code(standing.implementation)} ({markdown(standing.op)}): {found}")
    payments = [] if facts.invalidating else facts.payments
    rest = [*answer.describe_payments(payments)][:MOST_OF_A_KIND]
    rest += [answer.describe_shipped(others)] if others else []
    controls = tally_of_controls(facts.records)
    rest += [f"controls: {controls}" if controls else "no control ran", facts.trust]
    rest += [f"failed: {failure}" for failure in facts.results.failures[:MOST_OF_A_KIND]]
    lines += [f"- {markdown(text)}" for text in rest]
    for block in tables.candidates([r for s in own for r in s.records], wide=False):
        room = MOST_LINES - len(lines) - LINES_AROUND
        if isinstance(block, TableBlock) and room > 0:
            cut = replace(block, rows=block.rows[:room])
            more = len(block.rows) - len(cut.rows)
            lines += ["", *as_markdown(cut).splitlines()]
            lines += ["", f"and {more} more."] if more else []
        elif isinstance(block, Sentence):  # the meaning of a mark
            lines += ["", as_markdown(block)]
    return "\n".join(lines) + "\n"


def _make_safe(value: Any) -> Any:
    return markdown(value) if isinstance(value, str) and not isinstance(value, Ours) else value
