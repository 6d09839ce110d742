"""Write the reports of a run: report.html and selection_report.md."""

from pathlib import Path

from nsabench.files import write_text
from nsabench.output.report.facts import Facts

HTML = "report.html"
MARKDOWN = "selection_report.md"

__all__ = ["HTML", "MARKDOWN", "Facts", "summarise", "write_html", "write_markdown"]


def write_html(facts: Facts, folder: Path) -> Path:
    """Write the page. Raises `EnvironmentRefused` if the extra `report` is not installed."""
    from nsabench.output.report.page import render

    (folder / HTML).unlink(missing_ok=True)  # a kernel may have written this file
    return write_text(folder / HTML, render(facts))


def write_markdown(facts: Facts, folder: Path) -> Path:
    from nsabench.output.report.markdown import render

    return write_text(folder / MARKDOWN, render(facts))


def summarise(facts: Facts) -> str:
    from nsabench.output.report.markdown import summarise

    return summarise(facts)
