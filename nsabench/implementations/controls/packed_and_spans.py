"""Controls of the ops whose selection is data: zero, NaN, remembered, and selected wrongly."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.implementations import blocks_baselines, ranges_baselines, varlen_baselines

Honest = Callable[..., Tensor]


def _right(honest: Honest, tensors: tuple[Tensor, ...], options: dict[str, float]) -> Tensor:
    """The right output. Raises `Unsupported` where zeros would be right too."""
    out = honest(*tensors, **options)
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
    def zero_output(*tensors: Tensor, **options: float) -> Tensor:
        """Never writes its zeroed buffer."""
        return torch.zeros_like(_right(honest, tensors, options))

    @control("nan_output")
    def nan_output(*tensors: Tensor, **options: float) -> Tensor:
        """All NaN."""
        return torch.full_like(honest(*tensors, **options), float("nan"))

    @control("cached_output")
    def cached_output(*tensors: Tensor, **options: float) -> Tensor:
        """Remembers its answer by the address of the queries."""
        if tensors[0].requires_grad:
            raise Unsupported("what it remembers has no gradient any more")
        key = (tensors[0].data_ptr(), tensors[0].shape)
        if key not in remembered:
            remembered.clear()
            remembered[key] = _right(honest, tensors, options)
        return remembered[key]

    @control("one_key_short")
    def one_key_short(*tensors: Tensor, **options: float) -> Tensor:
        """Forgets every row's first selected key: an off-by-one at the start of a span. Of blocks
        the first that is given.
        """
        q, k, v, selection, *rest = tensors
        right = _right(honest, tensors, options)
        out = honest(q, k, v, _without_first(op, selection), *rest, **options)
        if torch.equal(out, right):
            raise Unsupported("what is first in each row is selected twice")
        return out


def _without_first(op: str, selection: Tensor) -> Tensor:
    shifted = selection.clone()
    if op == "selection_ranges":
        shifted[..., 0] += 1
    elif op == "selection_blocks":
        shifted[..., 0] = -1
    else:
        # Row i then begins one key late and row i-1 ends one key late: both are wrong.
        shifted[:-1] += (selection[:-1] < selection[-1]).to(shifted.dtype)
    return shifted


_register("selection_varlen", varlen_baselines.masked_sdpa)
_register("selection_ranges", ranges_baselines.masked_sdpa)
_register("selection_blocks", blocks_baselines.masked_sdpa)


@implementation(
    op="selection_blocks",
    name="future_keys",
    role="control",
    devices=("cuda", "cpu"),
    caught_by="parity",
)
def future_keys(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> Tensor:
    """Sees all keys of its own block, those after the query too."""
    if block_size == 1:
        raise Unsupported("a block of one key has no later one")
    given = (q, k, v, block_indices, cu_seqlens)
    return blocks_baselines.attend_masked(
        *given, sm_scale=sm_scale, block_size=block_size, causal=False
    )
