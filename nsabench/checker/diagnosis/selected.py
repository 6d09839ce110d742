"""Some rows of an op whose rows select keys of a shared K and V, and which keys these are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nsabench.ops import Inputs


def coordinates(flat: Tensor, shape: Sequence[int]) -> tuple[Tensor, ...]:
    """Do as `torch.unravel_index`, which imports a compiler's algebra and takes seconds for that.

    flat: int64, indices below the product of `shape`. Returns a tensor of its shape for each axis.
    """
    found = []
    for size in reversed(shape):
        found.append(flat % size)
        flat = flat // size
    return tuple(reversed(found))


@dataclass(frozen=True)
class Selection:
    """Rows of queries q [R,h,D]. Row r selects the keys `chosen[r]`: int64, ascending, each once.

    They are keys of the KV head `head[r]` of batch `batch[r]`, in k [B,H,S,D] and v [B,H,S,Dv]."""

    q: Tensor
    k: Tensor
    v: Tensor
    batch: Tensor
    head: Tensor
    chosen: Sequence[Tensor]
    sm_scale: float

    @property
    def count(self) -> Tensor:
        """The number of keys that each row selects."""
        return torch.tensor([len(keys) for keys in self.chosen], device=self.q.device)

    def gathered(self) -> tuple[Tensor, Tensor]:
        """Return k [R,L,D] and v [R,L,Dv] of the rows, undefined behind the keys of a row."""
        return self._gather(self.chosen, self.batch, self.head)

    def alone(self) -> Inputs:
        """Return these rows as a problem of selection_ranges, a span a row."""
        k, v = (x[None] for x in self.gathered())
        if not k.shape[2]:  # a problem has a key, even if no row selects it
            k, v = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        ranges = torch.stack([torch.zeros_like(self.count), self.count], -1).int()
        tensors = {"q": self.q[None, None], "k": k, "v": v, "ranges": ranges[None, None, :, None]}
        return Inputs(tensors, {"sm_scale": self.sm_scale, "selected_len": k.shape[2]})

    def attend(
        self,
        chosen: Sequence[Tensor] | None = None,
        *,
        batch: Tensor | None = None,
        head: Tensor | None = None,
        head_of_v: Tensor | None = None,
        unscored: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Compute the float64 output [R,h,Dv] with other keys, or another batch or head.

        chosen: a key that is named twice counts twice. head, head_of_v: [R], or [R,h], a head for
        each query head. unscored: marks of the chosen keys that get a score of 0.
        """
        chosen = self.chosen if chosen is None else chosen
        batch = self.batch if batch is None else batch
        head = self.head if head is None else head
        if head.dim() == 2:
            each = [
                self._attend(chosen, batch, head[:, i], head[:, i], unscored)[:, i : i + 1]
                for i in range(head.shape[1])
            ]
            return torch.cat(each, 1)
        return self._attend(chosen, batch, head, head if head_of_v is None else head_of_v, unscored)

    def _attend(
        self,
        chosen: Sequence[Tensor],
        batch: Tensor,
        head: Tensor,
        head_of_v: Tensor,
        unscored: Sequence[Tensor] | None,
    ) -> Tensor:
        k, v = self._gather(chosen, batch, head, head_of_v)
        scores = self.q.double() @ k.double().mT * self.sm_scale
        if unscored is not None:
            scores = scores.masked_fill(pad_sequence(list(unscored), True).unsqueeze(1), 0.0)
        count = torch.tensor([len(keys) for keys in chosen], device=k.device)
        behind = torch.arange(k.shape[1], device=k.device) >= count.view(-1, 1, 1)
        weights = torch.softmax(scores.masked_fill(behind, -torch.inf), -1).nan_to_num(0.0)
        return weights @ v.double()

    def _gather(
        self,
        chosen: Sequence[Tensor],
        batch: Tensor,
        head: Tensor,
        head_of_v: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        index = pad_sequence(list(chosen), batch_first=True)
        if not index.shape[1]:
            index = index.new_zeros(len(index), min(1, self.k.shape[2]))
        b, h = batch.unsqueeze(1), head.unsqueeze(1)
        of_v = h if head_of_v is None else head_of_v.unsqueeze(1)
        return self.k[b, h, index], self.v[b, of_v, index]


def spans(start: Tensor, end: Tensor, keys: int) -> list[Tensor]:
    """Return the keys start[r] up to end[r] of each row that exist."""
    ends = zip(start.clamp(0, keys).tolist(), end.clamp(0, keys).tolist(), strict=True)
    return [torch.arange(a, max(a, b), device=start.device) for a, b in ends]


def each_key(ranges: Tensor, keys: int) -> list[Tensor]:
    """Return the keys of the spans [R,n,2] of each row, as often as spans hold them."""
    return [
        torch.cat([torch.arange(a, max(a, b), device=ranges.device) for a, b in row])
        for row in ranges.clamp(0, keys).tolist()
    ]


def union(ranges: Tensor, keys: int) -> list[Tensor]:
    """Return the keys of the spans [R,n,2] of each row, each once."""
    return [row.unique() for row in each_key(ranges, keys)]
