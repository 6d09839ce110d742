"""Define what the decode ops share: one token of each sequence attends to its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from nsabench.ops._attention import AttentionOp, AttentionPart, Axes, HeadsShape, Ints, attend
from nsabench.ops._nsa_equations import LOCAL
from nsabench.ops._op import Inputs, Shape, Size, by_device

if TYPE_CHECKING:
    from torch import Tensor

CACHES = by_device(
    cpu=("B=1,S=200,HQ=4,H=2,D=32", "B=2,S=77,HQ=4,H=2,D=32"),
    cuda=("B=8,S=8192,HQ=64,H=4,D=128", "B=3,S=5000,HQ=64,H=4,D=128"),
)


@dataclass(frozen=True)
class DecodeSizes:
    """The sizes of a decode step that do not follow from its tensors, named as in `NsaSizes`."""

    block: int
    stride: int
    block_size: int
    n_selected: int
    window: int


class CacheShape(HeadsShape):
    """B tokens, each with a cache of S tokens."""

    B: Size
    S: Size

    @property
    def cached(self) -> int:
        return self.S

    @property
    def reads(self) -> int:
        return self.cached


class DecodeOp(AttentionOp):
    arguments: ClassVar[tuple[str, ...]] = ("q", "k", "v")
    check_shapes: ClassVar[Mapping[str, tuple[str, ...]]] = CACHES
    shape_model: ClassVar[type[Shape]] = CacheShape
    length_axis: ClassVar[str] = "S"
    distributions: ClassVar[tuple[str, ...]] = ("random",)

    def axes(self, shape: Any, distribution: str, seed: int) -> Axes:
        return (shape.B, shape.HQ), (shape.B, shape.H, shape.cached)

    def count(self, shape: Any, distribution: str, seed: int) -> tuple[int, int, int]:
        return shape.B * shape.HQ * shape.reads, shape.B * shape.H * shape.reads, 0

    def parts(self, inputs: Inputs) -> Iterator[AttentionPart]:
        heads, kv_heads = inputs.tensors["q"].shape[1], inputs.tensors["k"].shape[1]
        group = heads // kv_heads
        for b, h in product(range(len(inputs.tensors["q"])), range(kv_heads)):
            queries = (b, slice(h * group, (h + 1) * group))
            yield AttentionPart(queries, (b, h), self.attend_head(inputs, b, h))

    def attend_head(self, inputs: Inputs, b: int, h: int) -> Callable[..., Tensor]:
        return partial(attend, scale=inputs.options["sm_scale"])


def count_compressed(tokens: int, block: int, stride: int) -> int:
    """Count the complete compressed keys. Raises `ValueError` for sizes that do not fit."""
    if block > tokens:
        raise ValueError(f"S={tokens} tokens are fewer than the {block=} tokens of one key")
    if block % stride:
        raise ValueError(f"{stride=} does not divide {block=}")
    return (tokens - block) // stride + 1


def count_selected(tokens: int, block_size: int, n_selected: int) -> int:
    blocks = -(-tokens // block_size)
    if n_selected >= blocks:
        return tokens
    return n_selected * block_size - blocks * block_size + tokens


def draw_blocks(
    rows: tuple[int, int], tokens: int, block_size: int, n_selected: int, seed: int
) -> Ints:
    """Draw the selected blocks, int64 [B,H,n]. Unused entries hold the number of all blocks."""
    rng = np.random.default_rng(seed)
    blocks = -(-tokens // block_size)
    own = blocks - 1
    forced = sorted({0, *range(max(own - LOCAL + 1, 0), own + 1)})
    free = np.setdiff1d(np.arange(blocks), forced)
    count = min(n_selected - len(forced), len(free))
    chosen = np.full((*rows, n_selected), blocks, dtype=np.int64)
    for row in np.ndindex(*rows):
        chosen[row][:count] = rng.permutation(free)[:count]
        chosen[row][count : count + len(forced)] = forced
    return chosen
