"""Shows a run in a terminal: its progress, and tables and a summary at its end."""

from nsabench.output.terminal.progress import Progress, console
from nsabench.output.terminal.summary import print_findings, print_summary

__all__ = ["Progress", "console", "print_findings", "print_summary"]
