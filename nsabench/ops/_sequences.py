"""Sequences of a batch: equally long side by side, or of unequal lengths packed one behind the
other along the tokens of a single row."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nsabench.ops import _banded
from nsabench.ops._contract import Inputs
from nsabench.ops._draws import Ints

if TYPE_CHECKING:
    from torch import Tensor

PACKED = "packed"


def draw_lengths(batches: int, tokens: int, distribution: str, seed: int) -> Ints:
    """Tokens of each sequence; packed ones have `tokens` in the mean."""
    if distribution == PACKED:
        return _banded.packed_lengths(batches, tokens, seed)
    return np.full(batches, tokens)


@dataclass(frozen=True)
class Sequences:
    """axes: the first two of q. lengths: tokens of each. packed: whether they share a row."""

    axes: tuple[int, int]
    lengths: Ints
    packed: bool

    @classmethod
    def drawn(cls, batches: int, tokens: int, distribution: str, seed: int) -> Sequences:
        packed = distribution == PACKED
        axes = (1, batches * tokens) if packed else (batches, tokens)
        return cls(axes, draw_lengths(batches, tokens, distribution, seed), packed)

    @property
    def longest(self) -> int:
        return int(self.lengths.max())

    def tensors(self, device: str) -> dict[str, Tensor]:
        """cu_seqlens, where they are packed."""
        import torch

        if not self.packed:
            return {}
        cu = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)
        return {"cu_seqlens": torch.from_numpy(cu).to(device)}

    @staticmethod
    def spans(inputs: Inputs) -> list[tuple[int, int, int]]:
        """Row of the batch, first token and end of each sequence."""
        q, cu = inputs.tensors["q"], inputs.tensors.get("cu_seqlens")
        if cu is None:
            return [(b, 0, q.shape[1]) for b in range(q.shape[0])]
        return [(0, start, end) for start, end in pairwise(cu.tolist())]
