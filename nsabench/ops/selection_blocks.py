"""selection_blocks: every query attends to the blocks of keys that its KV head chose for it.

q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv], block_indices int32 [B,T,H,S] -> out [B,T,HQ,Dv]. Query
head i belongs to KV head i // (HQ/H). Block j holds the keys j*block_size up to (j+1)*block_size;
a query at position t attends to those of its blocks up to t. -1 is no block and may stand anywhere
in a row; a block that is given twice counts once; a query without keys gives zeros (arXiv
2502.11089, section 3.3.2). Packed batches have B = 1 and a fifth tensor, cu_seqlens int32 [n+1]:
positions and blocks count from the start of the query's own sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import model_validator

from nsabench.errors import UsageError
from nsabench.model.vocabulary import Direction, DType
from nsabench.ops import _attention, _block_draws, _draws
from nsabench.ops._attention import AttentionOp
from nsabench.ops._block_draws import Ints
from nsabench.ops._contract import Inputs, Shape, Size, Work, dv_is_d

if TYPE_CHECKING:
    from torch import Tensor

# Gathered elements of K and V at a time: half a GiB in float64.
ORACLE_CHUNK_ELEMENTS = 1 << 26


class BlocksShape(Shape):
    """B batches, T tokens (together, if packed), HQ query heads, H KV heads, head dims D and Dv,
    S blocks a query, block_size keys a block (64 unless given)."""

    B: Size
    T: Size
    HQ: Size
    H: Size
    D: Size
    Dv: Size
    S: Size
    block_size: Size = 64

    _dv = model_validator(mode="before")(dv_is_d)

    @model_validator(mode="after")
    def _groups(self) -> BlocksShape:
        whole = self.HQ % self.H == 0
        if not whole:
            raise ValueError(f"HQ={self.HQ} query heads do not divide among H={self.H} KV heads")
        return self


class SelectionBlocks(AttentionOp):
    name = "selection_blocks"
    check_shapes = MappingProxyType(
        {
            "cpu": (
                "B=1,T=64,HQ=2,H=1,D=32,S=2,block_size=16",
                "B=2,T=50,HQ=4,H=2,D=32,S=2,block_size=16",
            ),
            "cuda": (
                "B=1,T=4096,HQ=64,H=4,D=128,S=16,block_size=64",
                "B=2,T=1000,HQ=64,H=4,D=128,S=8,block_size=64",
            ),
        }
    )
    arguments = ("q", "k", "v", "block_indices")
    optional = ("cu_seqlens",)
    options = ("sm_scale", "block_size")
    shape_model = BlocksShape
    length_axis = "T"
    directions = (Direction.FORWARD, Direction.BACKWARD)
    distributions = (*_block_draws.DISTRIBUTIONS, *_draws.VALUES)

    def length(self, shape: Shape) -> int:
        assert isinstance(shape, BlocksShape)
        return shape.T

    def work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        """A key that several queries select must come from memory only once."""
        assert isinstance(shape, BlocksShape)
        selected, touched, index_bytes = _counts(shape, distribution, seed)
        widths = shape.D + shape.Dv
        elements = shape.B * shape.T * shape.HQ * widths + touched * widths
        flops = 2 * shape.HQ // shape.H * selected * widths
        return Work(elements * dtype.itemsize + index_bytes, flops)

    def draw(self, shape: Shape, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        import torch

        assert isinstance(shape, BlocksShape)
        cu_seqlens, indices = _selection(shape, distribution, seed)
        normal = _draws.normal(dtype, device, seed)
        q = normal(shape.B, shape.T, shape.HQ, shape.D)
        k = normal(shape.B, shape.T, shape.H, shape.D)
        _draws.shape_values(distribution, q, k)
        tensors = {
            "q": q,
            "k": k,
            "v": normal(shape.B, shape.T, shape.H, shape.Dv),
            "block_indices": torch.from_numpy(indices).to(device),
        }
        if distribution == "packed":
            tensors["cu_seqlens"] = torch.from_numpy(cu_seqlens).to(device)
        return Inputs(tensors, {"sm_scale": shape.D**-0.5, "block_size": shape.block_size})

    def oracle(self, inputs: Inputs) -> Tensor:
        return attend(inputs)

    def gradients(self, inputs: Inputs, grad_out: Tensor) -> dict[str, Tensor]:
        return gradients(inputs, grad_out)

    def differentiable_elements(self, shape: Shape) -> int:
        assert isinstance(shape, BlocksShape)
        return shape.B * shape.T * (shape.HQ * shape.D + shape.H * (shape.D + shape.Dv))


def attend(inputs: Inputs, *, causal: bool = True) -> Tensor:
    """The float64 result; not causal, a query sees all keys of its blocks."""
    import torch

    q, v = inputs.tensors["q"], inputs.tensors["v"]
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64, device=q.device)
    for rows, _, p, _, _, vd in _pieces(inputs, causal):
        out[rows] = p @ vd
    return out


def gradients(inputs: Inputs, grad_out: Tensor, *, causal: bool = True) -> dict[str, Tensor]:
    """The float64 gradients of `attend`."""
    import torch

    grads = {
        name: torch.zeros_like(inputs.tensors[name], dtype=torch.float64)
        for name in SelectionBlocks.differentiable
    }
    scale = inputs.options["sm_scale"]
    for rows, keys, p, qd, kd, vd in _pieces(inputs, causal):
        batch, _, heads = rows
        kv_head = heads.start // qd.shape[1]
        dq, dk, dv = _attention.gradients(p, qd, kd, vd, grad_out[rows].double(), scale)
        grads["q"][rows] = dq
        # Keys that a query does not see have weight zero, so where they are does not matter.
        grads["k"][batch, :, kv_head].index_add_(0, keys.flatten(), dk.flatten(0, 1))
        grads["v"][batch, :, kv_head].index_add_(0, keys.flatten(), dv.flatten(0, 1))
    return grads


def _pieces(inputs: Inputs, causal: bool = True) -> Iterator[tuple[Any, ...]]:
    """Chunks of queries of one batch and KV head: where they are in q, where their keys are among
    its T [n,L], their weights on these [n,G,L], and in float64 q [n,G,D], k [n,L,D], v [n,L,Dv]."""
    import torch

    q, k, v, chosen = (inputs.tensors[name] for name in SelectionBlocks.arguments)
    block = int(inputs.options["block_size"])
    batches, tokens, kv_heads, slots = chosen.shape
    group = q.shape[2] // kv_heads
    position = torch.arange(tokens, device=q.device)
    start, end = torch.zeros_like(position), torch.full_like(position, tokens)
    if "cu_seqlens" in inputs.tensors:
        ends = inputs.tensors["cu_seqlens"].long()
        start, end = (
            torch.repeat_interleave(x, ends.diff(), output_size=tokens)
            for x in (ends[:-1], ends[1:])
        )
    # The last key that a query may see, counted in its sequence.
    last = (position if causal else end - 1) - start
    within = torch.arange(block, device=q.device)
    step = max(1, ORACLE_CHUNK_ELEMENTS // (slots * block * (k.shape[3] + v.shape[3])))
    for b in range(batches):
        for h in range(kv_heads):
            kh, vh = k[b, :, h], v[b, :, h]
            for t in range(0, tokens, step):
                some = slice(t, t + step)
                blocks = chosen[b, some, h].long().sort(-1).values
                blocks[:, 1:].masked_fill_(blocks[:, 1:] == blocks[:, :-1], -1)
                keys = (blocks.unsqueeze(-1) * block + within).flatten(1)
                keep = (keys >= 0) & (keys <= last[some, None])
                keys = torch.where(keep, keys + start[some, None], 0)
                rows = (b, some, slice(h * group, (h + 1) * group))
                qd, kd, vd = q[rows].double(), kh[keys].double(), vh[keys].double()
                scale = inputs.options["sm_scale"]
                yield rows, keys, _attention.weights(qd, kd, scale, keep.unsqueeze(1)), qd, kd, vd


@lru_cache(maxsize=4)
def _selection(shape: BlocksShape, distribution: str, seed: int) -> tuple[Ints, Ints]:
    """cu_seqlens, of one sequence unless packed, and block_indices [B,T,H,S].

    Raises `UsageError` when a packed batch is not one row.
    """
    cu_seqlens = _block_draws.sequences(distribution, shape.T, seed)
    if len(cu_seqlens) > 2 and shape.B != 1:
        raise UsageError(f"a packed batch is one row of tokens and B is {shape.B}", "give B 1.")
    indices = _block_draws.indices(
        distribution,
        shape.B,
        _block_draws.positions(cu_seqlens),
        shape.H,
        shape.S,
        shape.block_size,
        seed,
    )
    return cu_seqlens, indices


@lru_cache(maxsize=1024)
def _counts(shape: BlocksShape, distribution: str, seed: int) -> tuple[int, int, int]:
    """Keys that the rows select, all together; keys that some row selects; bytes that say so."""
    cu_seqlens, indices = _selection(shape, distribution, seed)
    block = shape.block_size
    position = _block_draws.positions(cu_seqlens)
    blocks, keys = _block_draws.visible(indices, position, block)
    batches, tokens, kv_heads, _ = indices.shape
    first = (np.arange(tokens) - position)[:, None, None]
    # How many keys of each block are selected, by where the block begins.
    begins = np.where(keys, first + blocks * block, 0)
    begins += np.arange(kv_heads)[:, None] * tokens
    begins += (np.arange(batches) * kv_heads * tokens)[:, None, None, None]
    most = np.zeros(batches * kv_heads * tokens, dtype=np.int32)
    np.maximum.at(most, begins.ravel(), keys.ravel())
    index_bytes = indices.nbytes + (cu_seqlens.nbytes if distribution == "packed" else 0)
    return int(keys.sum(dtype=np.int64)), int(most.sum(dtype=np.int64)), index_bytes


OP = SelectionBlocks()
