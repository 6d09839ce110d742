"""sliding_window: causal attention over the last `window` keys.

q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv] -> out [B,T,HQ,Dv]. Query t sees the keys max(0, t - window
+ 1) .. t (arXiv 2502.11089, section 3.3.3). `packed` is as in `causal_attention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsabench.ops._op import Inputs, Size, by_device
from nsabench.ops._sequences import BandedOp, SequencesShape, sequence_ends

if TYPE_CHECKING:
    from torch import Tensor


class SlidingShape(SequencesShape):
    """A query sees the last `window` keys."""

    window: Size


class SlidingWindow(BandedOp):
    name = "sliding_window"
    check_shapes = by_device(
        cpu=("B=1,T=64,HQ=2,H=1,D=32,window=16", "B=2,T=50,HQ=4,H=2,D=32,window=20"),
        cuda=("B=1,T=4096,HQ=64,H=4,D=128,window=512", "B=2,T=1000,HQ=64,H=4,D=128,window=300"),
    )
    options = ("window", "sm_scale", "max_seqlen")
    shape_model = SlidingShape

    def seen(self, lengths: list[int], shape: SlidingShape) -> int:
        # The first queries of a sequence see fewer keys than the window holds.
        first = [min(n, shape.window) for n in lengths]
        others = sum(lengths) - sum(first)
        return sum(n * (n + 1) // 2 for n in first) + others * shape.window

    def bounds(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        import torch

        start, _ = sequence_ends(inputs)
        end = torch.arange(len(start), device=start.device) + 1
        return torch.maximum(start, end - int(inputs.options["window"])), end


OP = SlidingWindow()
