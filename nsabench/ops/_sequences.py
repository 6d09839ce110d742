"""Define ops over sequences, which are equally long or packed one after another.

Oracles with `samples_queries` compute only a sample of the queries of a large batch, and hold NaN
in the other rows. The gradient of the output is almost zero in these other rows, so the sample
decides dk and dv of every key.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nsabench.model.vocabulary import Direction
from nsabench.ops import _attention
from nsabench.ops._attention import (
    VALUES,
    AttentionOp,
    AttentionPart,
    Axes,
    HeadsShape,
    Indices,
    Ints,
)
from nsabench.ops._op import Inputs, Size, by_device

if TYPE_CHECKING:
    from torch import Tensor

PACKED = "packed"
QUERIES_AT_A_TIME = 512  # how many queries a `BandedOp` computes at a time
MOST_COMPUTED = 4096  # with more tokens in the batch, an oracle computes a sample of the queries
SAMPLE = 256
# Factors of the output's gradient outside and in the sample. Near 2^-17, float16 has seven bits.
QUIET = {"torch.bfloat16": 2.0**-20, "torch.float16": 2.0**-17, "torch.float32": 2.0**-30}
LOUD = {"torch.float16": 2.0**3}
CHECKED = by_device(
    cpu=("B=1,T=64,HQ=2,H=1,D=32", "B=2,T=50,HQ=4,H=2,D=32"),
    cuda=("B=1,T=4096,HQ=64,H=4,D=128", "B=2,T=1000,HQ=64,H=4,D=128"),
)


class SequencesShape(HeadsShape):
    """B sequences of T tokens. If they are packed, T is their mean length."""

    B: Size
    T: Size


def draw_lengths(shape: SequencesShape, distribution: str, seed: int) -> Ints:
    """Draw the lengths of the sequences. Packed lengths are very unequal, and sum to B * T."""
    count, mean = shape.B, shape.T
    if distribution != PACKED:
        return np.full(count, mean)
    ends = np.cumsum(np.arange(1, count + 1)) / (count * (count + 1) / 2)
    lengths = np.diff(np.rint(ends * count * mean).astype(np.int64), prepend=0)
    lengths[-1] += lengths[0] - 1 if count > 1 else 0
    lengths[0] = 1 if count > 1 else lengths[0]
    return np.random.default_rng(seed).permutation(lengths)


def cumulate(lengths: Ints) -> NDArray[np.int32]:
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


def sample_tokens(inputs: Inputs) -> Tensor:
    """Return the sampled tokens (all of a small batch), as rows of q [B*T,...]: int64, sorted."""
    import torch

    k = inputs.tensors["k"]
    total = k.shape[0] * k.shape[1]
    if total <= MOST_COMPUTED:
        return torch.arange(total, device=k.device)
    # Every process must choose the same sample, since inputs are drawn to suit the sample. No
    # implementation gets its seed. Otherwise one could leave out all other queries.
    generator = torch.Generator().manual_seed(inputs.sample_seed)
    places = torch.arange(SAMPLE) + torch.rand(SAMPLE, generator=generator)
    chosen = (places * (total / SAMPLE)).long().clamp_(max=total - 1)
    chosen[-1] = total - 1
    return chosen.unique().to(k.device)


def split_by_sequence(
    inputs: Inputs, sampled: Tensor | None = None
) -> Iterator[tuple[int, int, int, Tensor]]:
    sampled = sample_tokens(inputs) if sampled is None else sampled
    length = inputs.tensors["q"].shape[1]
    for batch, start, end in spans(inputs):
        first = batch * length
        own = sampled[(sampled >= first + start) & (sampled < first + end)] - first
        if own.numel():
            yield batch, start, end, own


def quieten_unsampled(inputs: Inputs, normal: Tensor) -> Tensor:
    """Return a gradient of the output [B,T,HQ,Dv], almost zero for queries outside the sample."""
    at = sample_tokens(inputs)
    if at.numel() == normal.shape[0] * normal.shape[1]:
        return normal
    dtype = str(normal.dtype)
    size = normal.new_full((normal.shape[0] * normal.shape[1],), QUIET[dtype])
    size[at] = LOUD.get(dtype, 1.0)
    return normal * size.view(*normal.shape[:2], 1, 1)


def compared(truth: Tensor) -> Tensor:
    return truth[..., 0].isfinite()


class SequenceOp(AttentionOp):
    """q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv] -> out [B,T,HQ,Dv].

    `packed`: B sequences one after another in q [1,B*T,HQ,D], with cu_seqlens int32 [B+1].
    """

    arguments: ClassVar[tuple[str, ...]] = ("q", "k", "v")
    optional: ClassVar[tuple[str, ...]] = ("cu_seqlens",)
    check_shapes: ClassVar[Mapping[str, tuple[str, ...]]] = CHECKED
    directions: ClassVar[tuple[Direction, ...]] = (Direction.FORWARD, Direction.BACKWARD)
    length_axis: ClassVar[str] = "T"
    distributions: ClassVar[tuple[str, ...]] = ("dense", PACKED)

    @abstractmethod
    def seen(self, lengths: list[int], shape: Any) -> int:
        """Count the pairs of a query and a key that it sees, in sequences of these lengths."""

    def count_keys(self, tokens: Ints, shape: Any) -> Ints:
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
    """An op in which query t sees the keys lo(t) to hi(t) - 1."""

    distributions: ClassVar[tuple[str, ...]] = ("dense", PACKED, *VALUES)

    @abstractmethod
    def bounds(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return lo and hi, int64 [T] each."""

    def parts(self, inputs: Inputs) -> Iterator[AttentionPart]:
        import torch

        lo, hi = self.bounds(inputs)
        q, k = inputs.tensors["q"], inputs.tensors["k"]
        group = q.shape[2] // k.shape[2]
        for t in range(0, q.shape[1], QUERIES_AT_A_TIME):
            some = slice(t, t + QUERIES_AT_A_TIME)
            first, end = int(lo[some].min()), min(int(hi[some].max()), k.shape[1])
            key = torch.arange(first, max(first, end), device=q.device)
            keep = (key >= lo[some].unsqueeze(1)) & (key < hi[some].unsqueeze(1))
            scale = inputs.options["sm_scale"]
            call = partial(_attention.attend, scale=scale, keep=keep.unsqueeze(1))
            for b, h in product(range(k.shape[0]), range(k.shape[2])):
                queries = (b, some, slice(h * group, (h + 1) * group))
                yield AttentionPart(queries, (b, slice(first, max(first, end)), h), call)
