"""Diagnosis of a wrong result: which known mistake reproduces it?

A hypothesis predicts the result of one mistake. The nearest one is reported with its error.
"""

from nsabench.checker.diagnosis.gradients import diagnose_gradient
from nsabench.checker.diagnosis.outputs import diagnose

__all__ = ["diagnose", "diagnose_gradient"]
