"""What the ops over sequences share. Sequences are equally long, or packed one after another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nsabench.model.vocabulary import Direction
from nsabench.ops import _draws
from nsabench.ops._attention import AttentionOp, Axes, HeadsShape, Indices, Part, attend
from nsabench.ops._contract import Inputs, Size
from nsabench.ops._draws import Ints

if TYPE_CHECKING:
    from torch import Tensor

PACKED = "packed"
QUERIES_AT_A_TIME = 512  # of a band, with the keys that they see


class SequencesShape(HeadsShape):
    """B sequences of T tokens (packed: of T in the mean)."""

    B: Size
    T: Size


def draw_lengths(shape: SequencesShape, distribution: str, seed: int) -> Ints:
    """Draw the tokens of each sequence. Packed ones are very unequal and sum to B * T."""
    count, mean = shape.B, shape.T
    if distribution != PACKED:
        return np.full(count, mean)
    ends = np.cumsum(np.arange(1, count + 1)) / (count * (count + 1) / 2)
    lengths = np.diff(np.rint(ends * count * mean).astype(np.int64), prepend=0)
    lengths[-1] += lengths[0] - 1 if count > 1 else 0
    lengths[0] = 1 if count > 1 else lengths[0]
    return np.random.default_rng(seed).permutation(lengths)


def cumulate(lengths: Ints) -> NDArray[np.int32]:
    """Return where packed sequences begin, and the end of the last: [n+1]."""
    return np.append([0], np.cumsum(lengths)).astype(np.int32)


def sequence_ends(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return where the sequence of each token begins and ends: int64 [T] each."""
    import torch

    q, cu = inputs.tensors["q"], inputs.tensors.get("cu_seqlens")
    if cu is None:
        none = torch.zeros(q.shape[1], dtype=torch.int64, device=q.device)
        return none, none + q.shape[1]
    return spread_over_tokens(cu[:-1], cu), spread_over_tokens(cu[1:], cu)


def spread_over_tokens(value: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return for each token the value [n] of its sequence: int64 [T]."""
    import torch

    return torch.repeat_interleave(value.long(), cu_seqlens.diff().long())


def spans(inputs: Inputs) -> list[tuple[int, int, int]]:
    """Return the row of the batch, the first token and the end of each sequence."""
    q, cu = inputs.tensors["q"], inputs.tensors.get("cu_seqlens")
    if cu is None:
        return [(b, 0, q.shape[1]) for b in range(q.shape[0])]
    return [(0, start, end) for start, end in pairwise(cu.tolist())]


class SequenceOp(AttentionOp):
    """q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv] -> out [B,T,HQ,Dv].

    `packed`: B sequences one after another in q [1,B*T,HQ,D], with cu_seqlens int32 [B+1].
    """

    arguments: ClassVar[tuple[str, ...]] = ("q", "k", "v")
    optional: ClassVar[tuple[str, ...]] = ("cu_seqlens",)
    directions: ClassVar[tuple[Direction, ...]] = (Direction.FORWARD, Direction.BACKWARD)
    length_axis: ClassVar[str] = "T"
    distributions: ClassVar[tuple[str, ...]] = ("dense", PACKED)

    @abstractmethod
    def seen(self, lengths: list[int], shape: Any) -> int:
        """Return how many keys all queries of sequences of these lengths see together."""

    def count_keys(self, tokens: Ints, shape: Any) -> Ints:
        """Return how many keys sequences of so many tokens have."""
        return tokens

    def axes(self, shape: Any, distribution: str, seed: int) -> Axes:
        rows = 1 if distribution == PACKED else shape.B
        keys = int(self.count_keys(draw_lengths(shape, distribution, seed), shape).sum())
        return (rows, shape.B * shape.T // rows, shape.HQ), (rows, keys // rows, shape.H)

    def count(self, shape: Any, distribution: str, seed: int) -> tuple[int, int, int]:
        index_bytes = 4 * (shape.B + 1) * len(self.optional) if distribution == PACKED else 0
        pairs = shape.HQ * self.seen(draw_lengths(shape, distribution, seed).tolist(), shape)
        return pairs, prod(self.axes(shape, distribution, seed)[1]), index_bytes

    def indices(self, shape: Any, distribution: str, seed: int) -> Indices:
        if distribution != PACKED:
            return {}
        lengths = draw_lengths(shape, distribution, seed)
        counts = lengths, self.count_keys(lengths, shape)
        return {name: cumulate(each) for name, each in zip(self.optional, counts, strict=False)}

    def drawn_options(self, shape: Any, distribution: str, seed: int) -> dict[str, Any]:
        longest = int(draw_lengths(shape, distribution, seed).max())
        return {**super().drawn_options(shape, distribution, seed), "max_seqlen": longest}


class BandedOp(SequenceOp):
    """An op in which query t sees the keys lo(t) up to hi(t)."""

    distributions: ClassVar[tuple[str, ...]] = ("dense", PACKED, *_draws.VALUES)

    @abstractmethod
    def bounds(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return lo and hi, int64 [T] each."""

    def parts(self, inputs: Inputs) -> Iterator[Part]:
        import torch

        lo, hi = self.bounds(inputs)
        q, k = inputs.tensors["q"], inputs.tensors["k"]
        group = q.shape[2] // k.shape[2]
        for t in range(0, q.shape[1], QUERIES_AT_A_TIME):
            some = slice(t, t + QUERIES_AT_A_TIME)
            first, end = int(lo[some].min()), min(int(hi[some].max()), k.shape[1])
            key = torch.arange(first, max(first, end), device=q.device)
            keep = (key >= lo[some].unsqueeze(1)) & (key < hi[some].unsqueeze(1))
            call = partial(attend, scale=inputs.options["sm_scale"], keep=keep.unsqueeze(1))
            for b, h in product(range(k.shape[0]), range(k.shape[2])):
                queries = (b, some, slice(h * group, (h + 1) * group))
                yield Part(queries, (b, slice(first, max(first, end)), h), call)
