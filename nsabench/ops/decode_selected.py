"""decode_selected: the selection branch of a decode step, one token against blocks of its cache.

q [B,HQ,D]; caches k [B,H,S,D], v [B,H,S,Dv], the token itself at S - 1; ranges int32 [B,H,n,2],
half-open and disjoint, each a block of `block_size` tokens (the last is cut off at the token, and
some may be empty) -> out [B,HQ,Dv]. The heads of a group share their blocks (arXiv 2502.11089,
section 3.3.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from nsabench.model.vocabulary import DType
from nsabench.ops._contract import Inputs, Size, Work, by_device
from nsabench.ops._decode import CacheShape, DecodeOp, attend, count_selected, draw_blocks

if TYPE_CHECKING:
    from torch import Tensor


class SelectedShape(CacheShape):
    """B tokens, each with a cache of S tokens; HQ query heads on H key heads, head dims D (q, k)
    and Dv (v; D unless given); `n_selected` blocks of `block_size` tokens."""

    block_size: Size
    n_selected: Size

    @model_validator(mode="after")
    def _fits(self) -> SelectedShape:
        count_selected(self.S, self.block_size, self.n_selected)
        return self

    @property
    def reads(self) -> int:
        return count_selected(self.S, self.block_size, self.n_selected)


class DecodeSelected(DecodeOp):
    name = "decode_selected"
    check_shapes = by_device(
        cpu=(
            "B=1,S=200,HQ=4,H=2,D=32,block_size=32,n_selected=4",
            "B=2,S=77,HQ=4,H=2,D=32,block_size=32,n_selected=4",
        ),
        cuda=(
            "B=8,S=8192,HQ=64,H=4,D=128,block_size=64,n_selected=16",
            "B=3,S=5000,HQ=64,H=4,D=128,block_size=64,n_selected=16",
        ),
    )
    arguments = ("q", "k", "v", "ranges")
    options = ("block_size", "sm_scale")
    shape_model = SelectedShape

    def work(self, shape: SelectedShape, dtype: DType, distribution: str, seed: int) -> Work:
        attention = super().work(shape, dtype, distribution, seed)
        ranges_bytes = 8 * shape.B * shape.H * shape.n_selected
        return Work(attention.bytes_min + ranges_bytes, attention.flops)

    def draw(self, shape: Any, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        import torch

        inputs = super().draw(shape, dtype, distribution, seed, device)
        size = shape.block_size
        blocks = draw_blocks((shape.B, shape.H), shape.S, size, shape.n_selected, seed)
        start = (torch.from_numpy(blocks).to(device) * size).to(torch.int32)
        end = (start + size).clamp_(max=shape.S)
        inputs.tensors["ranges"] = torch.stack([start, end], -1)
        return inputs

    def oracle(self, inputs: Inputs) -> Tensor:
        import torch

        q, k, v, ranges = (inputs.tensors[name] for name in self.arguments)
        token = torch.arange(k.shape[2], device=q.device)
        keep = torch.zeros(*k.shape[:3], dtype=torch.bool, device=q.device)
        for span in ranges.unbind(2):
            keep |= (token >= span[..., :1]) & (token < span[..., 1:])
        return attend(q, k, v, inputs.options["sm_scale"], keep)[0]


OP = DecodeSelected()
