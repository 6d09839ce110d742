"""Controls whose output is right, or could be, but whose inputs are not what they were."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines.selection_rows import heads_as_queries
from nsabench.implementations.controls.honest import output_shape
from nsabench.registry import Honest, control


@control(caught_by="parity")
def mutated_input(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Folds the scale into the caller's own first input: the first output is right. Where there is
    no scale, it works in that input's memory once the output is made."""
    first, *others = tensors
    if "sm_scale" not in options:
        out: Tensor = honest(*tensors, **options)
        first.mul_(0.5)
        return out
    if options["sm_scale"] == 1.0:
        raise Unsupported("a scale of one changes nothing")
    right: Tensor = honest(first.mul_(options["sm_scale"]), *others, **options | {"sm_scale": 1.0})
    return right


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


@control(caught_by="parity")
def returned_input_alias(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Returns its first argument, of the right shape, and does nothing."""
    first = tensors[0]
    if first.shape != output_shape(honest, tensors, options):
        raise Unsupported("the first input has not the shape of the output, Dv being unlike D, say")
    return first.view_as(first)
