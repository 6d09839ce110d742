"""decode_compressed: the compressed branch of a decode step, one token against compressed keys.

q [B,HQ,D]; complete compressed keys k [B,H,Nc,D], v [B,H,Nc,Dv] -> out [B,HQ,Dv], with
Nc = (S - block) // stride + 1 of a cache of S tokens (arXiv 2502.11089, section 3.3.1). The token
sees all of them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import model_validator

from nsabench.model.vocabulary import DType
from nsabench.ops import _draws
from nsabench.ops._contract import Inputs, Shape, Size
from nsabench.ops._decode import CacheShape, DecodeOp, attend, count_compressed

if TYPE_CHECKING:
    from torch import Tensor


class CompressedCacheShape(CacheShape):
    """B tokens, each with a cache of S tokens, compressed to keys of `block` tokens, one every
    `stride`; HQ query heads on H key heads, head dims D (q, k) and Dv (v; D unless given)."""

    block: Size
    stride: Size

    @model_validator(mode="after")
    def _fits(self) -> CompressedCacheShape:
        count_compressed(self.S, self.block, self.stride)
        return self

    @property
    def reads(self) -> int:
        return count_compressed(self.S, self.block, self.stride)


class DecodeCompressed(DecodeOp):
    name = "decode_compressed"
    check_shapes = MappingProxyType(
        {
            "cpu": (
                "B=1,S=200,HQ=4,H=2,D=32,block=32,stride=16",
                "B=2,S=77,HQ=4,H=2,D=32,block=32,stride=16",
            ),
            "cuda": (
                "B=8,S=8192,HQ=64,H=4,D=128,block=32,stride=16",
                "B=3,S=5000,HQ=64,H=4,D=128,block=32,stride=16",
            ),
        }
    )
    arguments = ("q", "k", "v")
    shape_model = CompressedCacheShape

    def draw(self, shape: Shape, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        assert isinstance(shape, CompressedCacheShape)
        normal = _draws.normal(dtype, device, seed)
        q = normal(shape.B, shape.HQ, shape.D)
        k = normal(shape.B, shape.H, shape.reads, shape.D)
        v = normal(shape.B, shape.H, shape.reads, shape.Dv)
        return Inputs({"q": q, "k": k, "v": v}, {"sm_scale": shape.D**-0.5})

    def oracle(self, inputs: Inputs) -> Tensor:
        t = inputs.tensors
        return attend(t["q"], t["k"], t["v"], inputs.options["sm_scale"])[0]


OP = DecodeCompressed()
