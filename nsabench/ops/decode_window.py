"""decode_window: the window branch of a decode step, one token against the last keys of its cache.

q [B,HQ,D]; caches k [B,H,S,D], v [B,H,S,Dv], the token itself at S - 1 -> out [B,HQ,Dv]; all heads
see the last min(window, S) keys (arXiv 2502.11089, section 3.3.3).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from nsabench.model.vocabulary import DType
from nsabench.ops import _draws
from nsabench.ops._contract import Inputs, Shape, Size
from nsabench.ops._decode import CacheShape, DecodeOp, attend

if TYPE_CHECKING:
    from torch import Tensor


class WindowShape(CacheShape):
    """B tokens, each with a cache of S tokens; HQ query heads on H key heads, head dims D (q, k)
    and Dv (v; D unless given); `window` keys."""

    window: Size

    @property
    def reads(self) -> int:
        return min(self.window, self.S)


class DecodeWindow(DecodeOp):
    name = "decode_window"
    check_shapes = MappingProxyType(
        {
            "cpu": (
                "B=1,S=200,HQ=4,H=2,D=32,window=64",
                "B=2,S=77,HQ=4,H=2,D=32,window=30",
            ),
            "cuda": (
                "B=8,S=8192,HQ=64,H=4,D=128,window=512",
                "B=3,S=5000,HQ=64,H=4,D=128,window=512",
            ),
        }
    )
    arguments = ("q", "k", "v")
    options = ("window", "sm_scale")
    shape_model = WindowShape

    def draw(self, shape: Shape, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        assert isinstance(shape, WindowShape)
        normal = _draws.normal(dtype, device, seed)
        q = normal(shape.B, shape.HQ, shape.D)
        k = normal(shape.B, shape.H, shape.S, shape.D)
        v = normal(shape.B, shape.H, shape.S, shape.Dv)
        options = {"window": shape.window, "sm_scale": shape.D**-0.5}
        return Inputs({"q": q, "k": k, "v": v}, options)

    def oracle(self, inputs: Inputs) -> Tensor:
        t, options = inputs.tensors, inputs.options
        near = slice(max(t["k"].shape[2] - options["window"], 0), None)
        return attend(t["q"], t["k"][:, :, near], t["v"][:, :, near], options["sm_scale"])[0]


OP = DecodeWindow()
