"""decode_selected: the selection branch of a decode step, one token against blocks of its cache.

q [B,HQ,D]; caches k [B,H,S,D], v [B,H,S,Dv], the token itself at S - 1; ranges int32 [B,H,n,2] ->
out [B,HQ,Dv]. Ranges are half-open and disjoint. Each range is a block of `block_size` tokens, cut
off after the token, or empty. The heads of a group share their blocks (arXiv 2502.11089, section
3.3.2).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nsabench.ops._attention import Indices, attend
from nsabench.ops._decode import CACHES, CacheShape, DecodeOp, count_selected, draw_blocks
from nsabench.ops._nsa_equations import SelectionSizes
from nsabench.ops._op import Inputs, extend_on_cpu

if TYPE_CHECKING:
    from torch import Tensor


class SelectedShape(SelectionSizes, CacheShape):
    @property
    def reads(self) -> int:
        return count_selected(self.S, self.block_size, self.n_selected)


class DecodeSelected(DecodeOp):
    name = "decode_selected"
    check_shapes = extend_on_cpu(CACHES, *["block_size=32,n_selected=4"] * 2)
    arguments = ("q", "k", "v", "ranges")
    options = ("block_size", "sm_scale")
    shape_model = SelectedShape

    def count(self, shape: Any, distribution: str, seed: int) -> tuple[int, int, int]:
        pairs, keys, _ = super().count(shape, distribution, seed)
        return pairs, keys, 8 * shape.B * shape.H * shape.n_selected

    def indices(self, shape: Any, distribution: str, seed: int) -> Indices:
        size = shape.block_size
        start = draw_blocks((shape.B, shape.H), shape.S, size, shape.n_selected, seed) * size
        end = np.minimum(start + size, shape.S)
        return {"ranges": np.stack([start, end], -1).astype(np.int32)}

    def attend_head(self, inputs: Inputs, b: int, h: int) -> Callable[..., Tensor]:
        import torch

        ranges, keys = inputs.tensors["ranges"][b, h], inputs.tensors["k"].shape[2]
        token = torch.arange(keys, device=ranges.device)
        keep = ((token >= ranges[:, :1]) & (token < ranges[:, 1:])).any(0)
        return partial(attend, scale=inputs.options["sm_scale"], keep=keep)


OP = DecodeSelected()
