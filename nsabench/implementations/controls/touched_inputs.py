"""Controls whose output is right, or could be, but whose inputs are not what they were."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines.selection_rows import heads_as_queries
from nsabench.implementations.controls.honest import Attention, of_every_op


@of_every_op(caught_by="parity")
def mutated_input(honest: Attention, *tensors: Tensor, **options: Any) -> Tensor:
    """Folds the scale into the caller's own q: the first output is right."""
    q, *others = tensors
    if options["sm_scale"] == 1.0:
        raise Unsupported("a scale of one changes nothing")
    return honest(q.mul_(options["sm_scale"]), *others, **options | {"sm_scale": 1.0})


@implementation(
    op="selection_rows",
    name="reordered_input",
    role="control",
    devices=("cuda", "cpu"),
    caught_by="parity",
)
def reordered_input(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    """Reverses the caller's keys and values in place: every output is right, since attention does
    not depend on their order, and a plain sum of the inputs does not either.
    """
    if k.shape[1] == 1:
        raise Unsupported("one key has no order")
    k.copy_(k.flip(1))
    v.copy_(v.flip(1))
    return heads_as_queries(q, k, v, sm_scale)


@of_every_op(caught_by="parity")
def returned_input_alias(honest: Attention, *tensors: Tensor, **options: Any) -> Tensor:
    """Returns its first argument, of the right shape, and does nothing."""
    q, _, v = tensors[:3]
    if v.shape[-1] != q.shape[-1]:
        raise Unsupported("with Dv unlike D, q has not the shape of the output")
    return q.view_as(q)
