"""decode_selected: the selection branch of a decode step, one token against blocks of its cache.

q [B,HQ,D]; caches k [B,H,S,D], v [B,H,S,Dv], the token itself at S - 1; ranges int32 [B,H,n,2],
half-open and disjoint, each a block of `block_size` tokens (the last is cut off at the token, and
some may be empty) -> out [B,HQ,Dv]. The heads of a group share their blocks (arXiv 2502.11089,
section 3.3.2).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import model_validator

from nsabench.model.vocabulary import DType
from nsabench.ops import _draws
from nsabench.ops._contract import Inputs, Shape, Size, Work
from nsabench.ops._decode import (
    CacheShape,
    DecodeOp,
    attend,
    count_selected,
    draw_blocks,
    within,
)

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
    check_shapes = MappingProxyType(
        {
            "cpu": (
                "B=1,S=200,HQ=4,H=2,D=32,block_size=32,n_selected=4",
                "B=2,S=77,HQ=4,H=2,D=32,block_size=32,n_selected=4",
            ),
            "cuda": (
                "B=8,S=8192,HQ=64,H=4,D=128,block_size=64,n_selected=16",
                "B=3,S=5000,HQ=64,H=4,D=128,block_size=64,n_selected=16",
            ),
        }
    )
    arguments = ("q", "k", "v", "ranges")
    options = ("block_size", "sm_scale")
    shape_model = SelectedShape

    def work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        assert isinstance(shape, SelectedShape)
        attention = super().work(shape, dtype, distribution, seed)
        ranges_bytes = 8 * shape.B * shape.H * shape.n_selected
        return Work(attention.bytes_min + ranges_bytes, attention.flops)

    def draw(self, shape: Shape, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        import torch

        assert isinstance(shape, SelectedShape)
        normal = _draws.normal(dtype, device, seed)
        b, h, size = shape.B, shape.H, shape.block_size
        q = normal(b, shape.HQ, shape.D)
        k, v = normal(b, h, shape.S, shape.D), normal(b, h, shape.S, shape.Dv)
        blocks = draw_blocks((b, h), shape.S, size, shape.n_selected, seed)
        start = (torch.from_numpy(blocks).to(device) * size).to(torch.int32)
        end = (start + size).clamp_(max=shape.S)
        return Inputs(
            {"q": q, "k": k, "v": v, "ranges": torch.stack([start, end], -1)},
            {"block_size": size, "sm_scale": shape.D**-0.5},
        )

    def oracle(self, inputs: Inputs) -> Tensor:
        import torch

        t = inputs.tensors
        keep = within(t["ranges"], torch.arange(t["k"].shape[2], device=t["q"].device))
        return attend(t["q"], t["k"], t["v"], inputs.options["sm_scale"], keep)[0]


OP = DecodeSelected()
