"""What a run shows in a terminal: progress while it goes, tables and a summary at its end."""

from nsabench.output.terminal.progress import Progress, console
from nsabench.output.terminal.summary import print_counts, print_findings, print_summary

__all__ = ["Progress", "console", "print_counts", "print_findings", "print_summary"]
