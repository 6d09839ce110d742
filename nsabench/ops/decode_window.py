"""decode_window: the window branch of a decode step, one token against the last keys of its cache.

q [B,HQ,D]; caches k [B,H,S,D], v [B,H,S,Dv], the token itself at S - 1 -> out [B,HQ,Dv]. All heads
see the last min(window, S) keys (arXiv 2502.11089, section 3.3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nsabench.ops._attention import attend
from nsabench.ops._decode import CACHES, CacheShape, DecodeOp
from nsabench.ops._op import Inputs, Size, extend_on_cpu

if TYPE_CHECKING:
    from torch import Tensor


class WindowShape(CacheShape):
    """The token sees the last `window` keys."""

    window: Size = 512

    @property
    def reads(self) -> int:
        return min(self.window, self.S)


class DecodeWindow(DecodeOp):
    name = "decode_window"
    check_shapes = extend_on_cpu(CACHES, "window=64", "window=30")
    options = ("window", "sm_scale")
    shape_model = WindowShape

    def attend_head(self, inputs: Inputs, b: int, h: int) -> Callable[..., Tensor]:
        import torch

        k, window = inputs.tensors["k"], inputs.options["window"]
        keep = torch.arange(k.shape[2], device=k.device) >= k.shape[2] - window
        return partial(attend, scale=inputs.options["sm_scale"], keep=keep)


OP = DecodeWindow()
