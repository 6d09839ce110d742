"""nsa_without_window: a variant of the whole that libraries compute: no overlap, and no window.

q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv], gates [B,T,HQ,2] -> out [B,T,HQ,Dv] = gates[0] compressed +
gates[1] selected. Compressed keys and values are means of whole blocks of `block_size` tokens, each
of which a query sees from its last token on. Of the same blocks the first, the two up to the
query's own and those of the highest scores are selected, `n_selected` in all; the score of a block
is the weight of its compressed key, summed over the heads of the group. `parallel_nsa` of fla-core
computes this where it is given no `g_swa`.

It is a case of `nsa_attention`, with one block a stride and a gate of zero on the window: `packed`,
max_seqlen and what is left out of parity are as there.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import model_validator

from nsabench.model.vocabulary import Direction, DType
from nsabench.ops._attention import AttentionOp
from nsabench.ops._banded import HeadsShape
from nsabench.ops._contract import Inputs, Shape, Size, Work, dv_is_d
from nsabench.ops._legal import Legal
from nsabench.ops.nsa_attention import OP as WHOLE
from nsabench.ops.nsa_attention import NsaShape

if TYPE_CHECKING:
    from torch import Tensor

GATES = 2
NO_WINDOW = 1  # the query's own key, at a gate of zero


class WithoutWindowShape(HeadsShape):
    """B sequences of T tokens (packed: of T in the mean), HQ query heads on H key heads, head dims
    D (q, k) and Dv (v; D unless given); `n_selected` blocks of `block_size` tokens, each of which
    is one compressed key, too."""

    B: Size
    T: Size
    block_size: Size = 64
    n_selected: Size = 16

    _dv = model_validator(mode="before")(dv_is_d)

    @model_validator(mode="after")
    def _fits(self) -> WithoutWindowShape:
        self.whole()
        return self

    def whole(self) -> NsaShape:
        """The shape of `nsa_attention` that this is. Raises `ValueError` where it is none."""
        size = self.block_size
        return NsaShape(**self.model_dump(), block=size, stride=size, window=NO_WINDOW)


class NsaWithoutWindow(AttentionOp):
    name = "nsa_without_window"
    check_shapes = MappingProxyType(
        {
            "cpu": (
                "B=1,T=120,HQ=4,H=2,D=32,block_size=16,n_selected=4",
                "B=2,T=77,HQ=4,H=2,D=32,block_size=16,n_selected=3",
            ),
            "cuda": ("B=1,T=4096,HQ=64,H=4,D=128", "B=2,T=1000,HQ=64,H=4,D=128"),
        }
    )
    arguments = ("q", "k", "v", "gates")
    optional = ("cu_seqlens",)
    options = ("block_size", "n_selected", "sm_scale", "max_seqlen")
    differentiable = ("q", "k", "v", "gates")
    shape_model = WithoutWindowShape
    directions = (Direction.FORWARD, Direction.BACKWARD, Direction.STEP)
    length_axis = "T"
    distributions = WHOLE.distributions
    leaves_rows_out = True
    rows_stand_alone = False  # which queries are looked at hangs on all of them

    def length(self, shape: Shape) -> int:
        assert isinstance(shape, WithoutWindowShape)
        return shape.T

    def terms(self, shape: Shape) -> int:
        assert isinstance(shape, WithoutWindowShape)
        return WHOLE.terms(shape.whole())

    def work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        """As of the whole: q, k, v, two gates and the output move once."""
        assert isinstance(shape, WithoutWindowShape)
        whole = shape.whole()
        bytes_min = WHOLE.work(whole, dtype, distribution, seed).bytes_min
        parts = WHOLE.parts(whole, dtype, distribution, seed)
        least = parts["compressed"].flops + parts["selected"].flops
        return Work(bytes_min - self._window_gates(shape) * dtype.itemsize, least)

    def differentiable_elements(self, shape: Shape) -> int:
        assert isinstance(shape, WithoutWindowShape)
        return WHOLE.differentiable_elements(shape.whole()) - self._window_gates(shape)

    def _window_gates(self, shape: WithoutWindowShape) -> int:
        return shape.B * shape.T * shape.HQ

    def draw(self, shape: Shape, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        assert isinstance(shape, WithoutWindowShape)
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
    """Inputs of `nsa_attention` on which it is this op: they hold the same tensors."""
    import torch

    gates = torch.nn.functional.pad(inputs.tensors["gates"], (0, 1))
    size = inputs.options["block_size"]
    options = {**inputs.options, "block": size, "stride": size, "window": NO_WINDOW}
    return Inputs({**inputs.tensors, "gates": gates}, options)


OP = NsaWithoutWindow()
