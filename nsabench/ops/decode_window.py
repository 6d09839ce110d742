"""decode_window: the window branch of a decode step, one token against the last keys of its cache.

q [B,HQ,D]; caches k [B,H,S,D], v [B,H,S,Dv], the token itself at S - 1 -> out [B,HQ,Dv]. All heads
see the last min(window, S) keys (arXiv 2502.11089, section 3.3.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsabench.ops._contract import Inputs, Size
from nsabench.ops._decode import CacheShape, DecodeOp, attend

if TYPE_CHECKING:
    from torch import Tensor


class WindowShape(CacheShape):
    """B tokens, each with a cache of S tokens. HQ query heads on H key heads. Head dims D (q, k)
    and Dv (v; D unless given). `window` keys.
    """

    window: Size = 512

    @property
    def reads(self) -> int:
        return min(self.window, self.S)


class DecodeWindow(DecodeOp):
    name = "decode_window"
    check_shapes = DecodeOp.check_caches("window=64", "window=30")
    options = ("window", "sm_scale")
    shape_model = WindowShape

    def oracle(self, inputs: Inputs) -> Tensor:
        t, options = inputs.tensors, inputs.options
        near = slice(max(t["k"].shape[2] - options["window"], 0), None)
        return attend(t["q"], t["k"][:, :, near], t["v"][:, :, near], options["sm_scale"])[0]


OP = DecodeWindow()
