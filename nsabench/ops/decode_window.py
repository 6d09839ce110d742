"""decode_window: the window branch of a decode step, one token against the last keys of its cache.

q [B,HQ,D]; caches k [B,H,S,D], v [B,H,S,Dv], the token itself at S - 1 -> out [B,HQ,Dv]. All heads
see the last min(window, S) keys (arXiv 2502.11089, section 3.3.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsabench.ops._contract import Inputs, Size, by_device
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
    check_shapes = by_device(
        cpu=("B=1,S=200,HQ=4,H=2,D=32,window=64", "B=2,S=77,HQ=4,H=2,D=32,window=30"),
        cuda=("B=8,S=8192,HQ=64,H=4,D=128,window=512", "B=3,S=5000,HQ=64,H=4,D=128,window=512"),
    )
    options = ("window", "sm_scale")
    shape_model = WindowShape

    def oracle(self, inputs: Inputs) -> Tensor:
        t, options = inputs.tensors, inputs.options
        near = slice(max(t["k"].shape[2] - options["window"], 0), None)
        return attend(t["q"], t["k"][:, :, near], t["v"][:, :, near], options["sm_scale"])[0]


OP = DecodeWindow()
