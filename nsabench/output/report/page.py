"""report.html: the page of one run."""

from __future__ import annotations

from nsabench.output.report import embedded, html
from nsabench.output.report.facts import Facts
from nsabench.output.report.sections import sections

SCRIPTS = ("series.js", "charts.js", "main.js")


def render(facts: Facts) -> str:
    """The page. Raises `EnvironmentRefused` where the extra `report` is not installed."""
    return html.render(
        "page.html.j2", SCRIPTS, embedded.data(facts), facts=facts, sections=sections(facts)
    )
