"""selection_blocks: every query attends to the blocks of keys that its KV head chose for it.

q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv], block_indices int32 [B,T,H,S] -> out [B,T,HQ,Dv]. Query
head i belongs to KV head i // (HQ/H). Block j holds block_size keys from key j*block_size. A query
attends to the keys of its blocks up to itself. An entry of -1 names no block and may be anywhere in
a row. A block that is given twice counts once. A query without keys gives zeros (arXiv
2502.11089, section 3.3.2). `packed` has B = 1 and cu_seqlens int32 [n+1]. Positions and blocks then
count from the start of the query's own sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

from nsabench.errors import UsageError
from nsabench.model.vocabulary import Direction
from nsabench.ops import _block_choices
from nsabench.ops._attention import VALUES, AttentionOp, AttentionPart, Axes, Indices, attend_to
from nsabench.ops._block_choices import Ints
from nsabench.ops._op import Inputs, Size, by_device
from nsabench.ops._sequences import CHECKED, SequencesShape, sequence_ends

# The most elements of keys and values that are gathered at a time: a quarter of a GiB in float64.
CHUNK_ELEMENTS = 1 << 25


class BlocksShape(SequencesShape):
    """S blocks a query, block_size keys a block (64 unless given)."""

    S: Size
    block_size: Size = 64


class SelectionBlocks(AttentionOp):
    name = "selection_blocks"
    check_shapes = by_device(
        cpu=tuple(f"{sizes},S=2,block_size=16" for sizes in CHECKED["cpu"]),
        cuda=(
            "B=1,T=4096,HQ=64,H=4,D=128,S=16,block_size=64",
            "B=2,T=1000,HQ=64,H=4,D=128,S=8,block_size=64",
        ),
    )
    arguments = ("q", "k", "v", "block_indices")
    optional = ("cu_seqlens",)
    options = ("sm_scale", "block_size")
    shape_model = BlocksShape
    length_axis = "T"
    directions = (Direction.FORWARD, Direction.BACKWARD)
    distributions = (*_block_choices.DISTRIBUTIONS, *VALUES)
    unprobed = (*AttentionOp.unprobed, "dense", "recorded")  # the last two need certain sizes

    def axes(self, shape: BlocksShape, distribution: str, seed: int) -> Axes:
        return (shape.B, shape.T, shape.HQ), (shape.B, shape.T, shape.H)

    def count(self, shape: BlocksShape, distribution: str, seed: int) -> tuple[int, int, int]:
        """Count what `AttentionOp` asks for. A key that several queries select is read once."""
        cu_seqlens, position = _place_tokens(shape, distribution, seed)
        selected, touched = _block_choices.count_keys(
            distribution, position, shape.H, shape.S, shape.block_size
        )
        indices = shape.B * shape.T * shape.H * shape.S
        index_bytes = 4 * (indices + (len(cu_seqlens) if distribution == "packed" else 0))
        return shape.B * shape.HQ // shape.H * selected, shape.B * touched, index_bytes

    def indices(self, shape: BlocksShape, distribution: str, seed: int) -> Indices:
        cu_seqlens, position = _place_tokens(shape, distribution, seed)
        packed = {"cu_seqlens": cu_seqlens} if distribution == "packed" else {}
        slots = shape.H, shape.S, shape.block_size
        indices = _block_choices.draw_blocks(distribution, shape.B, position, *slots, seed)
        return {"block_indices": indices, **packed}

    def parts(self, inputs: Inputs) -> Iterator[AttentionPart]:
        """Yield parts. If the option `causal` is False, queries see all keys of their blocks."""
        import torch

        q, k, v, chosen = (inputs.tensors[name] for name in self.arguments)
        batches, tokens, kv_heads, slots = chosen.shape
        size, group = int(inputs.options["block_size"]), q.shape[2] // kv_heads
        start, end = sequence_ends(inputs)
        causal = inputs.options.get("causal", True)
        last = torch.arange(tokens, device=q.device) if causal else end - 1
        step = max(1, CHUNK_ELEMENTS // (slots * size * (k.shape[3] + v.shape[3] + 2 * group)))
        within = torch.arange(size, device=q.device)
        for b, h, t in product(range(batches), range(kv_heads), range(0, tokens, step)):
            some = slice(t, t + step)
            blocks = chosen[b, some, h].long().sort(-1).values
            blocks[:, 1:].masked_fill_(blocks[:, 1:] == blocks[:, :-1], -1)  # each counts once
            keys = (start[some].unsqueeze(1) + blocks * size).unsqueeze(-1) + within
            keep = (blocks >= 0).unsqueeze(-1) & (keys <= last[some].view(-1, 1, 1))
            places = {"index": keys.flatten(1), "keep": keep.flatten(1)}
            call = partial(attend_to, scale=inputs.options["sm_scale"], **places)
            yield AttentionPart(
                (b, some, slice(h * group, (h + 1) * group)), (b, slice(None), h), call
            )


def _place_tokens(shape: BlocksShape, distribution: str, seed: int) -> tuple[Ints, Ints]:
    """Return cu_seqlens and each token's position. Raises `UsageError` for an impossible shape."""
    cu_seqlens = _block_choices.bound_sequences(distribution, shape.T, seed)
    if len(cu_seqlens) > 2 and shape.B != 1:
        raise UsageError(f"a packed batch is one row of tokens and B is {shape.B}", "give B 1.")
    blocks = -(-shape.T // shape.block_size)
    if distribution == "dense" and blocks > shape.S:
        raise UsageError(
            f"distribution dense selects all {blocks} blocks of {shape.block_size} keys and S is "
            f"{shape.S}",
            f"give S {blocks} or more.",
        )
    if distribution == "recorded":
        _block_choices.refuse_unrecorded(shape.S, shape.block_size, shape.T)
    return cu_seqlens, _block_choices.place_in_sequences(cu_seqlens)


OP = SelectionBlocks()
