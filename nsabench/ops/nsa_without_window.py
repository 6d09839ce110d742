"""nsa_without_window: a variant of NSA that libraries compute: no overlap, and no window.

q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv], gates [B,T,HQ,2] -> out [B,T,HQ,Dv]. The gates weigh a
compressed and a selected branch. Compressed keys and values are means of whole blocks of
`block_size` tokens. A query sees a block that ends at the query or before it. It selects
`n_selected` blocks as in `nsa_attention`. The score of a block is the weight of its compressed key,
summed over the heads of the group. `parallel_nsa` of fla-core computes this without `g_swa`.

It is a case of `nsa_attention`, with one block a stride and a gate of zero on the window. `packed`,
max_seqlen and the rows that are left out are as in `nsa_attention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from nsabench.model.vocabulary import DType
from nsabench.ops._contract import Inputs, Legal, Size, by_device
from nsabench.ops._sequences import SequencesShape
from nsabench.ops.nsa_attention import OP as WHOLE
from nsabench.ops.nsa_attention import NsaAttention, NsaShape

if TYPE_CHECKING:
    from torch import Tensor

GATES = 2
NO_WINDOW = 1  # the query's own key, at a gate of zero


class WithoutWindowShape(SequencesShape):
    """B sequences of T tokens (packed: of T in the mean). HQ query heads on H key heads. Head dims
    D (q, k) and Dv (v; D unless given). `n_selected` blocks of `block_size` tokens, each of which
    is also one compressed key.
    """

    block_size: Size = 64
    n_selected: Size = 16

    @model_validator(mode="after")
    def _fits(self) -> WithoutWindowShape:
        self.whole()
        return self

    def whole(self) -> NsaShape:
        """Return this shape as one of `nsa_attention`. Raises `ValueError` if it cannot be."""
        size = self.block_size
        return NsaShape(**self.model_dump(), block=size, stride=size, window=NO_WINDOW)


class NsaWithoutWindow(NsaAttention):
    name = "nsa_without_window"
    check_shapes = by_device(
        cpu=(
            "B=1,T=120,HQ=4,H=2,D=32,block_size=16,n_selected=4",
            "B=2,T=77,HQ=4,H=2,D=32,block_size=16,n_selected=3",
        ),
        cuda=("B=1,T=4096,HQ=64,H=4,D=128", "B=2,T=1000,HQ=64,H=4,D=128"),
    )
    options = ("block_size", "n_selected", "sm_scale", "max_seqlen")
    gates = GATES
    shape_model = WithoutWindowShape

    def terms(self, shape: Any) -> int:
        return super().terms(shape.whole())

    def seen(self, lengths: list[int], shape: Any) -> int:
        return int(sum(shape.whole().seen_by_branch(lengths)[:2]))

    def draw(self, shape: Any, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        whole = WHOLE.draw(shape.whole(), dtype, distribution, seed, device)
        gates = whole.tensors["gates"][..., :GATES].contiguous()
        options = {name: whole.options[name] for name in self.options}
        return Inputs({**whole.tensors, "gates": gates}, options)

    def draw_grad(self, inputs: Inputs, seed: int) -> Tensor:
        return WHOLE.draw_grad(as_whole(inputs), seed)

    def oracle(self, inputs: Inputs) -> Tensor:
        return WHOLE.oracle(as_whole(inputs))

    def legal(self, inputs: Inputs, oracle: Tensor) -> Legal | None:
        return WHOLE.legal(as_whole(inputs), oracle)

    def gradients(self, inputs: Inputs, grad_out: Tensor) -> dict[str, Tensor]:
        grads = WHOLE.gradients(as_whole(inputs), grad_out)
        return {**grads, "gates": grads["gates"][..., :GATES].contiguous()}


def as_whole(inputs: Inputs) -> Inputs:
    """Return inputs of `nsa_attention` on which it is this op; they hold the same tensors."""
    import torch

    gates = torch.nn.functional.pad(inputs.tensors["gates"], (0, 1))
    size = inputs.options["block_size"]
    options = {**inputs.options, "block": size, "stride": size, "window": NO_WINDOW}
    return Inputs({**inputs.tensors, "gates": gates}, options)


OP = NsaWithoutWindow()
