"""What became of the same cases in another run: another torch, Triton, GPU, or commit.

Runs are joined by case and implementation, and every later one is held against the first. A ratio
is the median time in the first run over that in the later one: above 1 the later one is faster.
The share of the timer is subtracted. If a baseline is known to be the same code in both runs, the
ratio is divided by the ratio of that baseline, so that the hosts cancel.
"""

from nsabench.output.compare.band import BAND
from nsabench.output.compare.comparison import ComparedCell, Comparison, Mean, compare
from nsabench.output.compare.side import Side, read

__all__ = [
    "BAND",
    "ComparedCell",
    "Comparison",
    "Mean",
    "Side",
    "compare",
    "read",
]
