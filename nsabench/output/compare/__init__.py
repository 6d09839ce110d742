"""Compares the same cases in several runs: another torch, Triton, GPU or commit.

Each later run is compared with the first. A ratio is the median time in the first run over the
median time in the later run, both without the timer's share. Above 1 the later run is faster.
"""

from nsabench.output.compare.comparison import ComparedCell, RunComparison, compare
from nsabench.output.compare.shift import BAND
from nsabench.output.compare.side import Side, read

__all__ = ["BAND", "ComparedCell", "RunComparison", "Side", "compare", "read"]
