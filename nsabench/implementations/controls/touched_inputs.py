"""Controls whose output is right, or could be, but whose inputs are not what they were."""

from __future__ import annotations

from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.implementations.sdpa import heads_as_queries

DEVICES = ("cuda", "cpu")


@implementation(
    op="selection_rows",
    name="mutated_input",
    role="control",
    devices=DEVICES,
    caught_by="parity",
)
def mutated_input(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    """Folds the scale into the caller's own q: the first output is right."""
    if sm_scale == 1.0:
        raise Unsupported("a scale of one changes nothing")
    return heads_as_queries(q.mul_(sm_scale), k, v, 1.0)


@implementation(
    op="selection_rows",
    name="reordered_input",
    role="control",
    devices=DEVICES,
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


@implementation(
    op="selection_rows",
    name="returned_input_alias",
    role="control",
    devices=DEVICES,
    caught_by="parity",
)
def returned_input_alias(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    """Returns its first argument, of the right shape, and does nothing."""
    if v.shape[2] != q.shape[2]:
        raise Unsupported("with Dv unlike D, q has not the shape of the output")
    return q.view_as(q)
