"""Compare the same cases in runs with other versions, GPUs or commits.

Each later run is compared with the first. A ratio is the median time in the first run over the
median time in the later run. Times exclude what the timer adds, if known. Above 1, the later run is
faster.
"""

from nsabench.output.compare.comparison import ComparedCell, RunComparison, compare
from nsabench.output.compare.shift import BAND
from nsabench.output.compare.side import Side, read

__all__ = ["BAND", "ComparedCell", "RunComparison", "Side", "compare", "read"]
