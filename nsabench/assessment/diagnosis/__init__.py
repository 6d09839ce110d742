"""Diagnosis of a parity failure: which known mistake reproduces the output?

Every hypothesis predicts what the op would return if one named thing had gone wrong; the one that
comes nearest to the output is reported with its error. Hypotheses that fit any op are in `generic`;
those that know an op's keys are in the module named after the op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsabench.ops import Inputs, Op

if TYPE_CHECKING:
    from torch import Tensor


def diagnose(op: Op, inputs: Inputs, output: Tensor, previous_output: Tensor | None = None) -> str:
    """One line on what `output` looks like, given the inputs it was made from.

    previous_output: what the call before this one returned, or was expected to return, if it had
      other inputs.
    """
    # Here and not above: whoever only wants to name this room need not have torch.
    from nsabench.assessment.diagnosis.search import explain

    return explain(op, inputs, output, previous_output)


def diagnose_gradient(
    op: Op,
    inputs: Inputs,
    grad_out: Tensor,
    name: str,
    got: Tensor,
    right: Tensor,
    previous: Tensor | None = None,
) -> str:
    """One line on what a wrong gradient looks like, given what it was made from.

    grad_out: the gradient of the output, up to a factor. name: `dq`, `dk` or whatever it is.
    right, previous: what it should be, and what the call before was expected to return, if it had
      other inputs.
    """
    from nsabench.assessment.diagnosis.gradients import explain

    return explain(op, inputs, grad_out, name, got, right, previous)
