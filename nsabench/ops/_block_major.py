"""Attention to chosen blocks of keys in float64, block by block: the oracle of selection_blocks.

Pairs of a query and a block are sorted by block and cut into tiles, so that keys move once a tile.
Scores are computed anew for their maximum, the output and the gradients (FlashAttention, arXiv
2205.14135, algorithms 1 and 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from nsabench.ops._contract import Inputs
from nsabench.ops._sequences import sequence_ends

if TYPE_CHECKING:
    from torch import Tensor

# Float64 elements in memory for some queries, and for some of their tiles: half a GiB each.
CHUNK_ELEMENTS = 1 << 26
TILE_ELEMENTS = 1 << 26
TILE_ELEMENTS_ON_CPU = 1 << 22  # which fit its caches
MOST_ROWS = 128  # of a tile: more save little, and more of them are empty
HELD = 3  # times the elements of a tile that are in memory at once; a backward needs fewer


@dataclass(frozen=True)
class Tiles:
    """Pairs of a query and a block. All pairs of a tile have the same block."""

    query: Tensor  # int64 [tiles,rows]
    seen: Tensor  # int64 [tiles,rows], how many keys of the block the query sees; 0 in empty rows
    first: Tensor  # int64 [tiles], the first key of the block

    @classmethod
    def make(
        cls, blocks: Tensor, start: Tensor, last: Tensor, size: int, most_rows: int = MOST_ROWS
    ) -> Tiles:
        """Make tiles of the blocks [n,S] of n queries.

        start, last: int64 [n], the first key of a query's sequence and the last key that it sees.
        """
        import torch

        chosen = blocks.long().sort(-1).values
        first = start.unsqueeze(1) + chosen * size
        seen = (last.unsqueeze(1) + 1 - first).clamp(0, size).masked_fill_(chosen < 0, 0)
        seen[:, 1:].masked_fill_(chosen[:, 1:] == chosen[:, :-1], 0)
        query, slot = seen.nonzero(as_tuple=True)
        ordered = first[query, slot].sort(stable=True)
        query, slot = query[ordered.indices], slot[ordered.indices]
        # No two sequences have a block that begins at the same key.
        begins, counts = ordered.values.unique_consecutive(return_counts=True)
        # At most as many rows as a block has pairs on average: no more than half are empty.
        average = len(query) // max(1, len(begins))
        rows = min(most_rows, 1 << max(0, average.bit_length() - 1))
        tiles = (counts + rows - 1) // rows
        # How many empty rows come before the pairs of each block.
        behind = (tiles * rows - counts).cumsum(0) - (tiles * rows - counts)
        at = torch.arange(len(query), device=query.device) + behind.repeat_interleave(counts)
        begins = begins.repeat_interleave(tiles)
        laid = query.new_zeros(2, len(begins) * rows)
        laid[0, at], laid[1, at] = query, seen[query, slot]
        return cls(laid[0].view(-1, rows), laid[1].view(-1, rows), begins)

    def split(self, count: int) -> Iterator[Tiles]:
        for at in range(0, len(self.first), count):
            some = slice(at, at + count)
            yield Tiles(self.query[some], self.seen[some], self.first[some])


@dataclass(frozen=True)
class Scores:
    """Scores s [tiles,rows*G,size], queries q [tiles,rows*G,D] and keys k [tiles,size,D].

    s is -inf where a query does not see a key.
    """

    query: Tensor  # int64 [tiles*rows], numbers in the chunk
    key: Tensor  # int64 [tiles,size], numbers in the KV head
    q: Tensor
    k: Tensor
    s: Tensor

    def take_queries(self, x: Tensor) -> Tensor:
        return x.index_select(0, self.query).view(*self.s.shape[:2], *x.shape[2:])

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.index_add_(0, self.query, x.view(-1, *total.shape[1:]))


@dataclass(frozen=True)
class Chunk:
    rows: tuple[int, slice, slice]  # the place of the queries in the inputs' q
    q: Tensor  # float64 [n,G,D], scaled
    k: Tensor  # [T,D]
    v: Tensor  # [T,Dv]
    tiles: Tiles
    size: int

    def scores(self) -> Iterator[Scores]:
        import torch

        group, d = self.q.shape[1:]
        width = d + self.v.shape[1]
        a_row = HELD * group * (width + self.size)
        # All passes use equal tiles, so that the scores are equal.
        a_tile = self.tiles.query.shape[1] * a_row + HELD * self.size * width
        within = torch.arange(self.size, device=self.q.device)
        for some in self.tiles.split(max(1, _most_elements(self.q) // a_tile)):
            # A key behind the last one is masked, so any key will do.
            key = (some.first.unsqueeze(1) + within).clamp_(max=len(self.k) - 1)
            query = some.query.flatten()
            q = self.q.index_select(0, query).view(len(key), -1, d)
            k = self.k[key].double()
            s = q @ k.mT
            unseen = within >= some.seen.unsqueeze(-1)
            s.view(*unseen.shape[:2], group, -1).masked_fill_(unseen.unsqueeze(2), float("-inf"))
            yield Scores(query, key, q, k, s)

    @cached_property
    def top(self) -> Tensor:
        """The highest score [n,G], or the lowest number for a query without keys."""
        import torch

        lowest = torch.finfo(torch.float64).min
        top = self.q.new_full(self.q.shape[:2], lowest)
        for part in self.scores():
            query = part.query.unsqueeze(1).expand(-1, top.shape[1])
            top.scatter_reduce_(0, query, part.s.amax(-1).view(query.shape), "amax")
        return top

    def weigh(self, part: Scores) -> Tensor:
        """Replace scores by weights whose sum is not yet 1."""
        return part.s.sub_(part.take_queries(self.top).unsqueeze(-1)).exp_()

    def attend(self, do: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the output [n,G,Dv], the sums of its weights [n,G] and rowsum(p (do v^T)) [n,G].

        The last is zero if no do [n,G,Dv] is given.
        """
        out = self.q.new_zeros(*self.q.shape[:2], self.v.shape[1])
        total, delta = (self.q.new_zeros(self.q.shape[:2]) for _ in range(2))
        for part in self.scores():
            p, v = self.weigh(part), self.v[part.key].double()
            part.add_to(total, p.sum(-1))
            part.add_to(out, p @ v)
            if do is not None:
                part.add_to(delta, (part.take_queries(do) @ v.mT).mul_(p).sum(-1))
        total.masked_fill_(total == 0, 1.0)
        return out.div_(total.unsqueeze(-1)), total, delta.div_(total)

    def differentiate(self, grad_out: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the output, and dq without the scale; add to dk [T,D] and dv [T,Dv] of the head.

        It uses rowsum(p (do v^T)) instead of rowsum(do o), whose rounding makes noise of a zero dq.
        """
        do = grad_out.double()
        out, total, delta = self.attend(do)
        dq = self.q.new_zeros(self.q.shape)
        for part in self.scores():
            g, key = part.take_queries(do), part.key.flatten()
            p = self.weigh(part).div_(part.take_queries(total).unsqueeze(-1))
            dv.index_add_(0, key, (p.mT @ g).flatten(0, 1))
            ds = g @ self.v[part.key].double().mT
            ds.sub_(part.take_queries(delta).unsqueeze(-1)).mul_(p)
            dk.index_add_(0, key, (ds.mT @ part.q).flatten(0, 1))
            part.add_to(dq, ds @ part.k)
        return out, dq


def _most_elements(x: Tensor) -> int:
    return TILE_ELEMENTS_ON_CPU if x.device.type == "cpu" else TILE_ELEMENTS


def chunks(inputs: Inputs) -> Iterator[Chunk]:
    """Yield all queries. With the option `causal` False, they see all keys of their blocks."""
    import torch

    q, k, v, chosen = (inputs.tensors[name] for name in ("q", "k", "v", "block_indices"))
    batches, tokens, kv_heads, slots = chosen.shape
    size, group = int(inputs.options["block_size"]), q.shape[2] // kv_heads
    position = torch.arange(tokens, device=q.device)
    start, end = sequence_ends(inputs)
    last = position if inputs.options.get("causal", True) else end - 1
    # A query's q, do, dq and output, and sixteen integers for each of its pairs.
    width = k.shape[3] + v.shape[3]
    step = max(1, CHUNK_ELEMENTS // (2 * group * width + 16 * slots))
    most_rows = min(MOST_ROWS, max(1, _most_elements(q) // (HELD * group * (width + size))))
    for b in range(batches):
        for h in range(kv_heads):
            for t in range(0, tokens, step):
                some = slice(t, t + step)
                rows = (b, some, slice(h * group, (h + 1) * group))
                tiles = Tiles.make(chosen[b, some, h], start[some], last[some], size, most_rows)
                scaled = q[rows].double() * inputs.options["sm_scale"]
                yield Chunk(rows, scaled, k[b, :, h], v[b, :, h], tiles, size)
