"""What a run shows in a terminal: progress while it goes, tables and a summary at its end."""

from nsabench.output.terminal.findings import print_counts, print_findings
from nsabench.output.terminal.progress import Progress
from nsabench.output.terminal.screen import console, interactive
from nsabench.output.terminal.summary import print_summary
from nsabench.output.terminal.tables import baselines_table, candidates_table

__all__ = [
    "Progress",
    "baselines_table",
    "candidates_table",
    "console",
    "interactive",
    "print_counts",
    "print_findings",
    "print_summary",
]
