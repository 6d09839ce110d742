"""A comparison as Markdown, for a pull request or a file that can be compared by diff."""

from __future__ import annotations

from nsabench.output.compare import over_many, view
from nsabench.output.compare.comparison import Comparison
from nsabench.output.report.markdown import template


def render(comparison: Comparison) -> str:
    """Return the text, which depends on the runs alone."""
    return template("comparison.md.j2", comparison=comparison, view=view, over_many=over_many)
