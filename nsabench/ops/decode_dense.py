"""decode_dense: one token against its whole cache, what a decoder without NSA does.

q [B,HQ,D]; caches k [B,H,S,D], v [B,H,S,Dv], the token itself at S - 1 -> out [B,HQ,Dv].
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from nsabench.model.vocabulary import DType
from nsabench.ops import _draws
from nsabench.ops._contract import Inputs, Shape
from nsabench.ops._decode import CacheShape, DecodeOp, attend

if TYPE_CHECKING:
    from torch import Tensor


class DecodeDense(DecodeOp):
    name = "decode_dense"
    check_shapes = MappingProxyType(
        {
            "cpu": (
                "B=1,S=200,HQ=4,H=2,D=32",
                "B=2,S=77,HQ=4,H=2,D=32",
            ),
            "cuda": (
                "B=8,S=8192,HQ=64,H=4,D=128",
                "B=3,S=5000,HQ=64,H=4,D=128",
            ),
        }
    )
    arguments = ("q", "k", "v")
    shape_model = CacheShape

    def draw(self, shape: Shape, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        assert isinstance(shape, CacheShape)
        normal = _draws.normal(dtype, device, seed)
        q = normal(shape.B, shape.HQ, shape.D)
        k = normal(shape.B, shape.H, shape.S, shape.D)
        v = normal(shape.B, shape.H, shape.S, shape.Dv)
        return Inputs({"q": q, "k": k, "v": v}, {"sm_scale": shape.D**-0.5})

    def oracle(self, inputs: Inputs) -> Tensor:
        t = inputs.tensors
        return attend(t["q"], t["k"], t["v"], inputs.options["sm_scale"])[0]


OP = DecodeDense()
