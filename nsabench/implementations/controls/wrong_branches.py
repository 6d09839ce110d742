"""Controls of the whole attention, and of its variant without a window: each has one of its
branches, or what joins them, wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations.baselines.nsa_attention import attend
from nsabench.implementations.baselines.nsa_without_window import attend_without_window
from nsabench.implementations.controls.wrong_keys import unless_right
from nsabench.ops import Inputs
from nsabench.registry import Honest, control

OP = "nsa_attention"
WHOLES: dict[str, Callable[..., Tensor]] = {OP: attend, "nsa_without_window": attend_without_window}
GATES = 3
MOST_LOOKED_AT = 4096  # tokens of which an oracle looks at every query


def _with_gates(honest: Honest, tensors: tuple[Tensor, ...], gates: Tensor, **options: Any) -> Any:
    others = (*tensors[:GATES], gates, *tensors[GATES + 1 :])
    return unless_right(honest(*others, **options), honest, tensors, options)


@control(*WHOLES, caught_by="parity", directions=())
def branch_left_out(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Has no selection: what is left are the other branches."""
    kept = torch.ones_like(tensors[GATES][0, 0, 0])
    kept[1] = 0
    out: Tensor = _with_gates(honest, tensors, tensors[GATES] * kept, **options)
    return out


@control(*WHOLES, caught_by="parity", directions=())
def gates_all_one(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Ignores the gates: adds the branches up as they are."""
    gates = tensors[GATES]
    out: Tensor = _with_gates(honest, tensors, gates * 0 + torch.ones_like(gates), **options)
    return out


@control(*WHOLES, caught_by="parity", directions=())
def scores_of_another_group(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Selects by the scores of the next key head."""
    if tensors[1].shape[2] == 1:
        raise Unsupported("there is one group of heads")
    _refuse_long(tensors)
    out = WHOLES[honest.op.name](*tensors, **options, group_of=1)
    return unless_right(out, honest, tensors, options)


@control(OP, caught_by="parity", directions=())
def window_one_short(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Its window lacks the oldest key."""
    if options["window"] == 1:
        raise Unsupported("a window of one key has none to lose")
    short = options | {"window": options["window"] - 1}
    return unless_right(honest(*tensors, **short), honest, tensors, options)


@control(*WHOLES, caught_by="parity", directions=())
def compression_of_the_future(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Sees compressed keys of which not all tokens, or none, are there yet."""
    _refuse_long(tensors)
    out = WHOLES[honest.op.name](*tensors, **options, sees_future=True)
    return unless_right(out, honest, tensors, options)


def _refuse_long(tensors: tuple[Tensor, ...]) -> None:
    if tensors[0].shape[1] > 1 << 14:
        raise Unsupported("the baseline that it is made of is too slow at this length")


@control(*WHOLES, caught_by="parity", directions=())
def rows_left_out_made_up(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Computes all rows but those of which rounding decides what is right. There it writes noise of
    the size of a row: any number would do, if nobody held them to what they can be."""
    if tensors[0].shape[0] * tensors[0].shape[1] > MOST_LOOKED_AT:
        raise Unsupported("it would take longer to find these rows than all others take")
    names = (*honest.op.arguments, *honest.op.optional)
    given = {n: t.detach() for n, t in zip(names, tensors, strict=False) if t is not None}
    left_out = honest.op.oracle(Inputs(given, options))[..., 0].isinf()
    if not bool(left_out.any()):
        raise Unsupported("no selection hangs on rounding here")
    out = honest(*tensors, **options)
    noise = torch.randn_like(out) * out.detach().float().square().mean().sqrt().to(out.dtype)
    made_up: Tensor = torch.where(left_out.unsqueeze(-1), noise, out)
    return made_up
