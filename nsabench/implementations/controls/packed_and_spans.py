"""Controls of the ops whose selection is data: zero, NaN, remembered, and one selection short."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.implementations import ranges_baselines, varlen_baselines

Honest = Callable[..., Tensor]


def _right(honest: Honest, tensors: tuple[Tensor, ...], sm_scale: float) -> Tensor:
    """The right output. Raises `Unsupported` where zeros would be right too."""
    out = honest(*tensors, sm_scale=sm_scale)
    if not bool(out.any()):
        raise Unsupported("nothing is selected, so zeros are right")
    return out


def _register(op: str, honest: Honest) -> None:
    remembered: dict[tuple[int, torch.Size], Tensor] = {}

    def control(name: str) -> Callable[[Honest], Honest]:
        return implementation(
            op=op, name=name, role="control", devices=("cuda", "cpu"), caught_by="parity"
        )

    @control("zero_output")
    def zero_output(*tensors: Tensor, sm_scale: float) -> Tensor:
        """Never writes its zeroed buffer."""
        return torch.zeros_like(_right(honest, tensors, sm_scale))

    @control("nan_output")
    def nan_output(*tensors: Tensor, sm_scale: float) -> Tensor:
        """All NaN."""
        return torch.full_like(honest(*tensors, sm_scale=sm_scale), float("nan"))

    @control("cached_output")
    def cached_output(*tensors: Tensor, sm_scale: float) -> Tensor:
        """Remembers its answer by the address of the queries."""
        if tensors[0].requires_grad:
            raise Unsupported("what it remembers has no gradient any more")
        key = (tensors[0].data_ptr(), tensors[0].shape)
        if key not in remembered:
            remembered.clear()
            remembered[key] = _right(honest, tensors, sm_scale)
        return remembered[key]

    @control("one_key_short")
    def one_key_short(*tensors: Tensor, sm_scale: float) -> Tensor:
        """Forgets every row's first selected key: an off-by-one at the start of a span."""
        *qkv, selection = tensors
        right = _right(honest, tensors, sm_scale)
        out = honest(*qkv, _without_first(op, selection), sm_scale=sm_scale)
        if torch.equal(out, right):
            raise Unsupported("the first key of each row is selected twice")
        return out


def _without_first(op: str, selection: Tensor) -> Tensor:
    shifted = selection.clone()
    if op == "selection_ranges":
        shifted[..., 0] += 1
    else:
        # Row i then begins one key late and row i-1 ends one key late: both are wrong.
        shifted[:-1] += (selection[:-1] < selection[-1]).to(shifted.dtype)
    return shifted


_register("selection_varlen", varlen_baselines.masked_sdpa)
_register("selection_ranges", ranges_baselines.masked_sdpa)
