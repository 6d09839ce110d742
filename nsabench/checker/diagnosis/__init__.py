"""Diagnosis of a wrong result: which known mistake reproduces it?

A hypothesis predicts the result of one mistake. The nearest one is reported with its error.
"""

from nsabench.checker.diagnosis.catalogue import Diagnosis
from nsabench.checker.diagnosis.gradients import diagnose_gradient
from nsabench.checker.diagnosis.outputs import diagnose

__all__ = ["Diagnosis", "diagnose", "diagnose_gradient"]
