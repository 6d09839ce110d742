"""From which selected length on is a candidate worth switching on?"""

from nsabench.verdicts.threshold.decide import Decision, decide_run, read_run
from nsabench.verdicts.threshold.document import THRESHOLDS, as_text, as_yaml, write

__all__ = [
    "THRESHOLDS",
    "Decision",
    "as_text",
    "as_yaml",
    "decide_run",
    "read_run",
    "write",
]
