"""decode_step: one token of Native Sparse Attention against its caches, all branches together.

q [B,HQ,D]; caches k [B,H,S,D], v [B,H,S,Dv]; complete compressed keys k_cmp [B,H,Nc,D], v_cmp
[B,H,Nc,Dv]; gates [B,HQ,3] -> out [B,HQ,Dv]. The token itself is at S - 1. The gates weigh a
compressed, a selected and a window branch in this order. The block scores choose the selection
(arXiv 2502.11089, sections 3.2 and 3.3). One object, `sizes` (`DecodeSizes`), holds the sizes that
do not follow from the caches.

In drawn inputs the best blocks stand out, so that rounding cannot decide the selection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import model_validator

from nsabench.model.vocabulary import DType
from nsabench.ops import _decode, _nsa_equations
from nsabench.ops._attention import Ints, draw_qkv
from nsabench.ops._decode import CACHES, CacheShape, DecodeOp, DecodeSizes
from nsabench.ops._nsa_equations import NsaSizes
from nsabench.ops._op import Inputs, Work, draw_normal, extend_on_cpu

if TYPE_CHECKING:
    from torch import Tensor

LOUDNESS = 20.0  # norm of a compressed key whose block is to be selected


class StepShape(NsaSizes, CacheShape):
    @model_validator(mode="after")
    def _fits(self) -> StepShape:
        _decode.count_compressed(self.S, self.block, self.stride)
        return self

    @property
    def sizes(self) -> DecodeSizes:
        return DecodeSizes(self.block, self.stride, self.block_size, self.n_selected, self.window)

    @property
    def compressed(self) -> int:
        return _decode.count_compressed(self.S, self.block, self.stride)

    @property
    def reads(self) -> int:
        selected = _decode.count_selected(self.S, self.block_size, self.n_selected)
        return self.compressed + selected + min(self.window, self.S)

    def blocks(self, seed: int) -> Ints:
        return _decode.draw_blocks((self.B, self.H), self.S, self.block_size, self.n_selected, seed)


class DecodeStep(DecodeOp):
    name = "decode_step"
    check_shapes = extend_on_cpu(
        CACHES, "block_size=32,n_selected=4,window=64", "block_size=32,n_selected=4,window=30"
    )
    arguments = ("q", "k", "v", "k_cmp", "v_cmp", "gates")
    gates = 3
    options = ("sizes", "sm_scale")
    shape_model = StepShape

    def work(self, shape: StepShape, dtype: DType, distribution: str, seed: int) -> Work:
        """Count a key that is both in a selected block and in the window as one read."""
        branches = super().work(shape, dtype, distribution, seed)
        begin = shape.blocks(seed) * shape.block_size
        end = np.minimum(begin + shape.block_size, shape.S)
        near = np.maximum(begin, shape.S - shape.window)
        shared = int(np.maximum(end - near, 0).sum())
        shared_bytes = shared * (shape.D + shape.Dv) * dtype.itemsize
        return Work(branches.bytes_min - shared_bytes, branches.flops)

    def draw(self, shape: Any, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        import torch

        normal = draw_normal(dtype, device, seed)
        axes = self.axes(shape, distribution, seed)
        tensors = draw_qkv(distribution, normal, *axes, shape)
        k_cmp = normal(shape.B, shape.H, shape.compressed, shape.D)
        v_cmp = normal(shape.B, shape.H, shape.compressed, shape.Dv)
        chosen = torch.from_numpy(shape.blocks(seed)).to(device)
        _make_loud(tensors["q"], k_cmp, chosen, shape.block_size // shape.stride)
        gates = torch.sigmoid(normal(shape.B, shape.HQ, self.gates))
        tensors |= {"k_cmp": k_cmp, "v_cmp": v_cmp, "gates": gates}
        options = self.drawn_options(shape, distribution, seed)
        return Inputs(tensors, {"sizes": shape.sizes, **options})

    def attend_head(self, inputs: Inputs, b: int, h: int) -> Callable[..., Tensor]:
        import torch

        t, options = inputs.tensors, inputs.options
        k_cmp, v_cmp = (t[name][b, h].double() for name in ("k_cmp", "v_cmp"))
        position = torch.tensor([t["k"].shape[2] - 1], device=k_cmp.device)
        sizes = asdict(options["sizes"])

        def attend(q: Tensor, k: Tensor, v: Tensor, gates: Tensor) -> Tensor:
            token = q[None], k, v, gates[None], k_cmp, v_cmp, position
            return _nsa_equations.attend(*token, **sizes, sm_scale=options["sm_scale"])[0]

        return attend


def _make_loud(q: Tensor, k_cmp: Tensor, chosen: Tensor, keys_a_block: int) -> None:
    """Make one compressed key of each chosen block parallel to the sum of its head's queries."""
    import torch

    b, h = k_cmp.shape[:2]
    sums = q.view(b, h, -1, q.shape[2]).float().sum(2)
    loud = (LOUDNESS * sums / sums.norm(dim=-1, keepdim=True)).to(k_cmp.dtype)
    keys = chosen * keys_a_block
    inside = keys < k_cmp.shape[2]
    index = torch.where(inside, keys, torch.zeros_like(keys)).unsqueeze(-1)
    index = index.expand(-1, -1, -1, k_cmp.shape[3])
    k_cmp.scatter_(2, index, loud.unsqueeze(2).expand(-1, -1, keys.shape[2], -1))


OP = DecodeStep()
