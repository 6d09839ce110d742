"""From which selected length on is a candidate worth switching on?"""

from nsabench.model.vocabulary import MARGIN
from nsabench.verdicts.threshold.decide import Decision, decide_all, decide_run
from nsabench.verdicts.threshold.document import (
    THRESHOLDS,
    as_markdown,
    as_yaml,
    read,
    said_otherwise,
    write,
)
from nsabench.verdicts.threshold.evidence import of_records, of_run, of_tables, records_of

__all__ = [
    "MARGIN",
    "THRESHOLDS",
    "Decision",
    "as_markdown",
    "as_yaml",
    "decide_all",
    "decide_run",
    "of_records",
    "of_run",
    "of_tables",
    "read",
    "records_of",
    "said_otherwise",
    "write",
]
