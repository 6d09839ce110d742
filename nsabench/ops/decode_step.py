"""decode_step: one token of Native Sparse Attention against its caches, all branches together.

q [B,HQ,D]; caches k [B,H,S,D], v [B,H,S,Dv]; complete compressed keys k_cmp [B,H,Nc,D], v_cmp
[B,H,Nc,Dv]; gates [B,HQ,3] -> out [B,HQ,Dv]. The token itself is at S - 1. The gates weigh a
compressed, a selected and a window branch in this order. The block scores choose the selection
(arXiv 2502.11089, sections 3.2 and 3.3). One object, `sizes` (`DecodeSizes`), holds the sizes that
the caches do not tell.

In drawn inputs the best blocks stand out, so that rounding cannot decide the selection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import model_validator

from nsabench.model.vocabulary import DType
from nsabench.ops import _draws, _nsa
from nsabench.ops._contract import Inputs, Size, Work
from nsabench.ops._decode import (
    LOUDNESS,
    CacheShape,
    DecodeOp,
    DecodeSizes,
    attend,
    count_compressed,
    count_selected,
    draw_blocks,
)
from nsabench.ops._draws import Ints

if TYPE_CHECKING:
    from torch import Tensor


class StepShape(CacheShape):
    """B tokens, each with a cache of S tokens. HQ query heads on H key heads. Head dims D (q, k)
    and Dv (v; D unless given). A compressed key has `block` tokens, and one begins every `stride`
    tokens. `n_selected` blocks of `block_size` tokens; `window` keys.
    """

    block: Size = 32
    stride: Size = 16
    block_size: Size = 64
    n_selected: Size = 16
    window: Size = 512

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
        """How many keys a head reads in all branches."""
        selected = count_selected(self.S, self.block_size, self.n_selected)
        return self.compressed + selected + min(self.window, self.S)

    def blocks(self, seed: int) -> Ints:
        return draw_blocks((self.B, self.H), self.S, self.block_size, self.n_selected, seed)


class DecodeStep(DecodeOp):
    name = "decode_step"
    check_shapes = DecodeOp.check_caches(
        "block_size=32,n_selected=4,window=64", "block_size=32,n_selected=4,window=30"
    )
    arguments = ("q", "k", "v", "k_cmp", "v_cmp", "gates")
    gates = 3
    options = ("sizes", "sm_scale")
    shape_model = StepShape

    def work(self, shape: StepShape, dtype: DType, distribution: str, seed: int) -> Work:
        """The work of the branches; what a selected block and the window share is read once."""
        branches = super().work(shape, dtype, distribution, seed)
        begin = shape.blocks(seed) * shape.block_size
        end = np.minimum(begin + shape.block_size, shape.S)
        near = np.maximum(begin, shape.S - shape.window)
        shared = int(np.maximum(end - near, 0).sum())
        shared_bytes = shared * (shape.D + shape.Dv) * dtype.itemsize
        return Work(branches.bytes_min - shared_bytes, branches.flops)

    def draw(self, shape: Any, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        import torch

        normal = _draws.normal(dtype, device, seed)
        axes = self.axes(shape, distribution, seed)
        tensors = _draws.attention(distribution, normal, *axes, shape)
        k_cmp = normal(shape.B, shape.H, shape.compressed, shape.D)
        v_cmp = normal(shape.B, shape.H, shape.compressed, shape.Dv)
        chosen = torch.from_numpy(shape.blocks(seed)).to(device)
        _make_loud(tensors["q"], k_cmp, chosen, shape.block_size // shape.stride)
        gates = torch.sigmoid(normal(shape.B, shape.HQ, self.gates))
        tensors |= {"k_cmp": k_cmp, "v_cmp": v_cmp, "gates": gates}
        options = self.drawn_options(shape, distribution, seed)
        return Inputs(tensors, {"sizes": shape.sizes, **options})

    def oracle(self, inputs: Inputs) -> Tensor:
        import torch

        t, scale = inputs.tensors, inputs.options["sm_scale"]
        sizes: DecodeSizes = inputs.options["sizes"]
        tokens = t["k"].shape[2]
        near = slice(max(tokens - sizes.window, 0), None)
        window = attend(t["q"], t["k"][:, :, near], t["v"][:, :, near], scale)[0]
        compressed, weights = attend(t["q"], t["k_cmp"], t["v_cmp"], scale)
        of_token = torch.arange(tokens, device=t["q"].device) // sizes.block_size
        keep = _select(weights, tokens, sizes)[..., of_token]
        selected = attend(t["q"], t["k"], t["v"], scale, keep)[0]
        gates = t["gates"].double().unsqueeze(-1)
        return gates[:, :, 0] * compressed + gates[:, :, 1] * selected + gates[:, :, 2] * window


def _make_loud(q: Tensor, k_cmp: Tensor, chosen: Tensor, keys_a_block: int) -> None:
    """Turn one compressed key [B,H,Nc,D] inside each chosen block [B,H,n], in place, to where its
    queries look. keys_a_block: compressed keys that begin in a block."""
    import torch

    b, h = k_cmp.shape[:2]
    sums = q.view(b, h, -1, q.shape[2]).float().sum(2)
    loud = (LOUDNESS * sums / sums.norm(dim=-1, keepdim=True)).to(k_cmp.dtype)
    keys = chosen * keys_a_block
    inside = keys < k_cmp.shape[2]
    index = torch.where(inside, keys, torch.zeros_like(keys)).unsqueeze(-1)
    index = index.expand(-1, -1, -1, k_cmp.shape[3])
    k_cmp.scatter_(2, index, loud.unsqueeze(2).expand(-1, -1, keys.shape[2], -1))


def _select(weights: Tensor, tokens: int, sizes: DecodeSizes) -> Tensor:
    """Return the blocks that weights [B,H,HQ/H,Nc] select (equations 9 to 12)."""
    import torch

    blocks, of_rows = -(-tokens // sizes.block_size), weights.flatten(0, 1)
    scores = _nsa.block_scores(of_rows, blocks, sizes.block, sizes.stride, sizes.block_size)
    position = torch.full_like(scores[:, 0], tokens - 1, dtype=torch.int64)
    ranked = _nsa.rank(scores, position, sizes.block_size)
    chosen, _ = _nsa.choose(ranked, sizes.n_selected, 0.0)
    keep = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, chosen, True)
    return keep.unflatten(0, weights.shape[:2])


OP = DecodeStep()
