"""decode_step: one token of Native Sparse Attention against its caches, all branches together.

q [B,HQ,D]; caches k [B,H,S,D], v [B,H,S,Dv], the token itself at S - 1; complete compressed keys
k_cmp [B,H,Nc,D], v_cmp [B,H,Nc,Dv]; gates [B,HQ,3] -> out [B,HQ,Dv] = gates[0] compressed +
gates[1] selected + gates[2] window, the selection made from the block scores (arXiv 2502.11089,
sections 3.2 and 3.3). What the caches do not say comes as one object, `sizes` (`DecodeSizes`).

In what is drawn the blocks with the highest scores stand out, so that rounding cannot decide which
are selected.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from pydantic import model_validator

from nsabench.model.vocabulary import DType
from nsabench.ops import _draws
from nsabench.ops._contract import Inputs, Shape, Size, Work
from nsabench.ops._decode import (
    CacheShape,
    DecodeOp,
    DecodeSizes,
    attend,
    count_compressed,
    count_selected,
    draw_blocks,
    make_loud,
    select,
)

if TYPE_CHECKING:
    from torch import Tensor


class StepShape(CacheShape):
    """B tokens, each with a cache of S tokens; HQ query heads on H key heads, head dims D (q, k)
    and Dv (v; D unless given); compressed keys of `block` tokens, one every `stride`; `n_selected`
    blocks of `block_size` tokens; `window` keys."""

    block: Size
    stride: Size
    block_size: Size
    n_selected: Size
    window: Size

    @model_validator(mode="after")
    def _fits(self) -> StepShape:
        count_compressed(self.S, self.block, self.stride)
        count_selected(self.S, self.block_size, self.n_selected)
        if self.block_size % self.stride:
            raise ValueError(f"{self.stride=} does not divide {self.block_size=}")
        return self

    @property
    def sizes(self) -> DecodeSizes:
        return DecodeSizes(self.block, self.stride, self.block_size, self.n_selected, self.window)

    @property
    def compressed(self) -> int:
        return count_compressed(self.S, self.block, self.stride)

    @property
    def reads(self) -> int:
        """Keys that a head reads in all branches together; what selection reads is among them."""
        selected = count_selected(self.S, self.block_size, self.n_selected)
        return self.compressed + selected + min(self.window, self.S)


class DecodeStep(DecodeOp):
    name = "decode_step"
    check_shapes = MappingProxyType(
        {
            "cpu": (
                "B=1,S=200,HQ=4,H=2,D=32,block=32,stride=16,block_size=32,n_selected=4,window=64",
                "B=2,S=77,HQ=4,H=2,D=32,block=32,stride=16,block_size=32,n_selected=4,window=30",
            ),
            "cuda": (
                "B=8,S=8192,HQ=64,H=4,D=128,block=32,stride=16,block_size=64,"
                "n_selected=16,window=512",
                "B=3,S=5000,HQ=64,H=4,D=128,block=32,stride=16,block_size=64,"
                "n_selected=16,window=512",
            ),
        }
    )
    arguments = ("q", "k", "v", "k_cmp", "v_cmp", "gates")
    options = ("sizes", "sm_scale")
    shape_model = StepShape

    def work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        """As of its branches; what a selected block and the window share is read only once."""
        assert isinstance(shape, StepShape)
        branches = super().work(shape, dtype, distribution, seed)
        begin = _blocks(shape, seed) * shape.block_size
        end = np.minimum(begin + shape.block_size, shape.S)
        near = np.maximum(begin, shape.S - shape.window)
        shared = int(np.maximum(end - near, 0).sum())
        elements = shape.B * shape.HQ * 3 - shared * (shape.D + shape.Dv)
        return Work(branches.bytes_min + elements * dtype.itemsize, branches.flops)

    def draw(self, shape: Shape, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        import torch

        assert isinstance(shape, StepShape)
        normal = _draws.normal(dtype, device, seed)
        b, h, n = shape.B, shape.H, shape.compressed
        q = normal(b, shape.HQ, shape.D)
        k, v = normal(b, h, shape.S, shape.D), normal(b, h, shape.S, shape.Dv)
        k_cmp, v_cmp = normal(b, h, n, shape.D), normal(b, h, n, shape.Dv)
        chosen = torch.from_numpy(_blocks(shape, seed)).to(device)
        make_loud(q, k_cmp, chosen, shape.block_size // shape.stride)
        gates = torch.sigmoid(normal(b, shape.HQ, 3))
        return Inputs(
            {"q": q, "k": k, "v": v, "k_cmp": k_cmp, "v_cmp": v_cmp, "gates": gates},
            {"sizes": shape.sizes, "sm_scale": shape.D**-0.5},
        )

    def oracle(self, inputs: Inputs) -> Tensor:
        import torch

        t, scale = inputs.tensors, inputs.options["sm_scale"]
        sizes: DecodeSizes = inputs.options["sizes"]
        tokens = t["k"].shape[2]
        near = slice(max(tokens - sizes.window, 0), None)
        window = attend(t["q"], t["k"][:, :, near], t["v"][:, :, near], scale)[0]
        compressed, weights = attend(t["q"], t["k_cmp"], t["v_cmp"], scale)
        of_token = torch.arange(tokens, device=t["q"].device) // sizes.block_size
        keep = select(weights, tokens, sizes)[..., of_token]
        selected = attend(t["q"], t["k"], t["v"], scale, keep)[0]
        gates = t["gates"].double().unsqueeze(-1)
        return gates[:, :, 0] * compressed + gates[:, :, 1] * selected + gates[:, :, 2] * window


def _blocks(shape: StepShape, seed: int) -> _draws.Ints:
    """The blocks that are meant to be selected, int64 [B,H,n]."""
    return draw_blocks((shape.B, shape.H), shape.S, shape.block_size, shape.n_selected, seed)


OP = DecodeStep()
