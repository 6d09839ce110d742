"""The passes of a run, in order: each looks at some cases, in a process of its own kind.

A pass says what of which cases is measured, in which process, and with which timing; how that goes
is the same for all (`execution.schedule`). A new pass is a file here, a name in the vocabulary, and
what its entries mean for a verdict (`assessment.verdict`).
"""

from nsabench.execution.passes import (
    canary,
    first_look,
    isolated_baselines,
    second_look,
)
from nsabench.execution.passes.contract import Pass

PASSES: tuple[Pass, ...] = (
    first_look.PASS,
    second_look.PASS,
    isolated_baselines.PASS,
    canary.PASS,
)

__all__ = ["PASSES", "Pass"]
