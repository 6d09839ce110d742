from nsabench.output.terminal.progress import Progress, console
from nsabench.output.terminal.summary import print_findings, print_sentences, print_summary

__all__ = ["Progress", "console", "print_findings", "print_sentences", "print_summary"]
