"""Diagnosis of a parity failure: which known mistake reproduces the output?

Every hypothesis predicts what the op returns if one named thing goes wrong. The one that comes
nearest to the output is reported with its error. `generic` has the hypotheses for any op, `known`
those for each op that ships.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsabench.ops import Inputs, Op

if TYPE_CHECKING:
    from torch import Tensor


def diagnose(op: Op, inputs: Inputs, output: Tensor, previous_output: Tensor | None = None) -> str:
    """Say in one line what `output` looks like, given its inputs.

    previous_output: what the call before this one returned, or should have returned, if it had
      other inputs.
    """
    # Here, so that this package can be imported without torch.
    from nsabench.checker.diagnosis.search import explain

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
    """Say in one line what a wrong gradient looks like, given its inputs.

    grad_out: the gradient of the output, up to a factor. name: such as `dq`. right, previous: what
      it should be, and what the call before this one should have returned, if it had other inputs.
    """
    from nsabench.checker.diagnosis.gradients import explain

    return explain(op, inputs, grad_out, name, got, right, previous)
