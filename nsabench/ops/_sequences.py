"""What the ops over sequences share. Sequences are equally long, or packed one after another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from nsabench.model.vocabulary import Direction, DType
from nsabench.ops import _attention, _draws
from nsabench.ops._attention import AttentionOp, HeadsShape, Portion
from nsabench.ops._contract import Inputs, Size, Work
from nsabench.ops._draws import Ints

if TYPE_CHECKING:
    from torch import Tensor

PACKED = "packed"
QUERIES_AT_A_TIME = 512  # of a band, with the keys that they see


class SequencesShape(HeadsShape):
    """B sequences of T tokens (packed: of T in the mean), HQ query heads on H key heads, head dims
    D (q, k) and Dv (v; D unless given)."""

    B: Size
    T: Size


def draw_lengths(shape: SequencesShape, distribution: str, seed: int) -> Ints:
    """Draw the tokens of each sequence.

    Packed ones sum to B * T and are very unequal; one of two or more is a single token.
    """
    count, mean = shape.B, shape.T
    if distribution != PACKED:
        return np.full(count, mean)
    ends = np.cumsum(np.arange(1, count + 1)) / (count * (count + 1) / 2)
    lengths = np.diff(np.rint(ends * count * mean).astype(np.int64), prepend=0)
    lengths[-1] += lengths[0] - 1 if count > 1 else 0
    lengths[0] = 1 if count > 1 else lengths[0]
    return np.random.default_rng(seed).permutation(lengths)


def cumulated(lengths: Ints, device: str) -> Tensor:
    """Return where packed sequences begin, and the end of the last: int32 [n+1]."""
    import torch

    return torch.from_numpy(np.append([0], np.cumsum(lengths)).astype(np.int32)).to(device)


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
    """q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv] -> out [B,T,HQ,Dv]. `packed`: B sequences one after
    another in q [1,B*T,HQ,D], and cu_seqlens int32 [B+1]; each sees itself only."""

    arguments: ClassVar[tuple[str, ...]] = ("q", "k", "v")
    optional: ClassVar[tuple[str, ...]] = ("cu_seqlens",)
    directions: ClassVar[tuple[Direction, ...]] = (Direction.FORWARD, Direction.BACKWARD)
    length_axis: ClassVar[str] = "T"
    distributions: ClassVar[tuple[str, ...]] = ("dense", PACKED)
    # Gates of each query head and token.
    gates: ClassVar[int] = 0

    @abstractmethod
    def seen(self, lengths: list[int], shape: Any) -> int:
        """Return how many keys all queries of sequences of these lengths see together."""

    def count_keys(self, tokens: Ints, shape: Any) -> Ints:
        """Return how many keys sequences of so many tokens have."""
        return tokens

    def work(self, shape: Any, dtype: DType, distribution: str, seed: int) -> Work:
        """Every input and the output move once; intermediate results need not move."""
        lengths = draw_lengths(shape, distribution, seed)
        keys = int(self.count_keys(lengths, shape).sum())
        widths, heads = shape.D + shape.Dv, shape.B * shape.T * shape.HQ
        elements = heads * (widths + self.gates) + keys * shape.H * widths
        cu_bytes = 4 * (shape.B + 1) * len(self.optional) if distribution == PACKED else 0
        seen = self.seen(lengths.tolist(), shape)
        return Work(elements * dtype.itemsize + cu_bytes, 2 * shape.HQ * seen * widths)

    def differentiable_elements(self, shape: Any) -> int:
        keys = int(self.count_keys(np.array(shape.T), shape))
        of_queries = shape.T * shape.HQ * (shape.D + self.gates)
        return int(shape.B * (of_queries + keys * shape.H * (shape.D + shape.Dv)))

    def draw(self, shape: Any, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        normal = _draws.normal(dtype, device, seed)
        lengths, packed = draw_lengths(shape, distribution, seed), distribution == PACKED
        counts = self.count_keys(lengths, shape)
        rows = 1 if packed else shape.B
        tokens, keys = int(lengths.sum()) // rows, int(counts.sum()) // rows
        sizes = (rows, tokens, shape.HQ), (rows, keys, shape.H)
        tensors = _draws.attention(distribution, normal, *sizes, shape)
        if packed:
            for name, each in zip(self.optional, (lengths, counts), strict=False):
                tensors[name] = cumulated(each, device)
        return Inputs(tensors, {**self.drawn_options(shape), "max_seqlen": int(lengths.max())})


class BandedOp(SequenceOp):
    """An op in which query t sees the keys lo(t) up to hi(t)."""

    distributions: ClassVar[tuple[str, ...]] = ("dense", PACKED, *_draws.VALUES)

    @abstractmethod
    def bounds(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return lo and hi, int64 [T] each."""

    def oracle(self, inputs: Inputs) -> Tensor:
        return _attention.attend(inputs, self._portions(inputs))

    def gradients(self, inputs: Inputs, grad_out: Tensor) -> dict[str, Tensor]:
        return _attention.differentiate(inputs, grad_out, self._portions(inputs))

    def _portions(self, inputs: Inputs) -> Iterator[Portion]:
        import torch

        lo, hi = self.bounds(inputs)
        q, k = inputs.tensors["q"], inputs.tensors["k"]
        group = q.shape[2] // k.shape[2]
        for b, h in product(range(k.shape[0]), range(k.shape[2])):
            for t in range(0, q.shape[1], QUERIES_AT_A_TIME):
                some = slice(t, t + QUERIES_AT_A_TIME)
                first, end = int(lo[some].min()), min(int(hi[some].max()), k.shape[1])
                keys = (b, slice(first, max(first, end)), h)
                queries = (b, some, slice(h * group, (h + 1) * group))
                key = torch.arange(first, max(first, end), device=q.device)
                keep = (key >= lo[some].unsqueeze(1)) & (key < hi[some].unsqueeze(1))
                yield Portion(inputs, queries, keys, keep)
