"""From which selected length on is a candidate worth switching on?"""

from nsabench.verdicts.threshold.decide import Decision, decide_run, read_run
from nsabench.verdicts.threshold.document import THRESHOLDS, as_markdown, as_yaml, read, write

__all__ = [
    "THRESHOLDS",
    "Decision",
    "as_markdown",
    "as_yaml",
    "decide_run",
    "read",
    "read_run",
    "write",
]
