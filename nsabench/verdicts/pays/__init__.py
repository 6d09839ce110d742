"""From which length on does an op pay: is it faster than what a model could run in its place?"""

from nsabench.verdicts.pays.decide import Cell, Payment, decide
from nsabench.verdicts.pays.document import CALLED, as_data, as_markdown, said

__all__ = [
    "CALLED",
    "Cell",
    "Payment",
    "as_data",
    "as_markdown",
    "decide",
    "said",
]
