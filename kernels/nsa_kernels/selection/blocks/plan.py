"""The inverted index of block-major attention: which queries chose a block of keys.

Tokens are numbered from 0 to N - 1 over all sequences. Blocks of ``block_size`` keys are also
numbered over all sequences, and called *bins*: block j of sequence b is bin ``cu[b] // block_size +
b + j``. For every chunk of tokens, KV head and bin, the index lists the tokens that chose the bin,
in ascending order. So kernels add up in an order that does not depend on timing.

The index is built on the device, and the host does not wait. Each (bin, token) has a bit. An atomic
"or" sets bits in any order. The bits are counted, and prefix sums give each token's place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...launch.device import on_its_device
from ...launch.shares import clear
from ...launch.sizes import GRID, batches, cdiv, next_power_of_2, strides
from .config import BITS_BYTES
from .kernels.plan import (
    bins_kernel,
    count_kernel,
    edges_kernel,
    entries_kernel,
    first_kernel,
    items_kernel,
)

TOKENS = 32
"""The most tokens of a program of ``bins_kernel`` and ``entries_kernel``."""
WARPS = 4
CHOICES = 1024
"""The most choices (tokens times S) of such a program: with a larger S, it takes fewer tokens."""
SCAN = 4096
"""The most bins that a step of the prefix sum in ``first_kernel`` takes."""


@dataclass(frozen=True)
class BlockPlan:
    """The inverted index of ``block_indices``, for reuse by the backward and by other layers.

    For N tokens, H KV heads, S chosen blocks per token, C chunks of ``chunk`` tokens, NB bins:

    - ``entries`` int32 [C, H, chunk * S]: for each bin, the tokens that chose it, counted from the
      first token of the chunk;
    - ``places`` int32 [N, H, S]: the index of a choice in the entries of its chunk and head; -1 if
      the choice is negative, after its token, or repeats an earlier one;
    - ``first`` and ``count`` int32 [C, H, NB]: a bin's first entry, and its number of entries;
    - ``edges`` int32 [NB, 2]: the first key of a bin, and the key after its last.
    """

    entries: torch.Tensor
    places: torch.Tensor
    first: torch.Tensor
    count: torch.Tensor
    edges: torch.Tensor
    block_size: int

    @property
    def lists(
        self,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.entries, self.places, self.first, self.count, self.edges

    @property
    def chunk(self) -> int:
        return self.entries.shape[2] // self.places.shape[2]

    @property
    def chunks(self) -> int:
        return self.entries.shape[0]

    @property
    def n_bins(self) -> int:
        return self.edges.shape[0]

    def items(self, queries: int) -> torch.Tensor:
        """Return work items of at most ``queries`` queries of one bin: int32 [C, H, slots, 2].

        An item is (bin, its first query within the bin), or (-1, -1) in an idle slot. The number of
        slots follows from the shapes alone. The first slot of bin i, whose entries begin at index
        e, is ``e // queries + i``.
        """
        chunks, heads, bins = self.first.shape
        slots = self.entries.shape[2] // queries + bins
        items = torch.empty((chunks, heads, slots, 2), dtype=torch.int32, device=self.first.device)
        block = min(128, next_power_of_2(bins))
        first, count = self.first.flatten(0, 1), self.count.flatten(0, 1)
        for some in batches(chunks * heads, 1):
            items_kernel[(cdiv(bins, block), some.stop - some.start)](
                *(first[some], count[some], items.flatten(0, 1)[some], bins, slots),
                QUERIES=queries,
                BLOCK=block,
            )
        return items


def plan_sizes(
    index: torch.Size, sequences: int | None, block_size: int, chunk: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, int]]:
    """Return the shapes of a plan's entries, places, first and edges. ``index``: [B, T, H, S]."""
    batch, length, heads, chosen = index
    tokens = batch * length
    n_bins = tokens // block_size + (batch if sequences is None else sequences)
    chunks = cdiv(tokens, chunk)
    return (
        (chunks, heads, chunk * chosen),
        (tokens, heads, chosen),
        (chunks, heads, n_bins),
        (n_bins, 2),
    )


@on_its_device
def build_plan(
    block_indices: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    block_size: int,
    chunk: int,
    cleared: bool,
    unique: bool = False,
) -> BlockPlan:
    """Build the inverted index of ``block_indices`` int32 [B, T, H, S].

    Args:
        cu_seqlens: int32 [sequences + 1], if B = 1 and the T tokens are packed sequences.
        chunk: tokens of a chunk, a multiple of 32.
        cleared: whether to set unused elements to 0. Kernels do not read these elements, but the
            results of an operator must not depend on uninitialised memory.
        unique: whether no token chooses a block twice, as from ``launch_top_n`` (not checked).
    """
    batch, length, heads, chosen = block_indices.shape
    device, tokens = block_indices.device, batch * length
    sequences = None if cu_seqlens is None else cu_seqlens.numel() - 1
    entries, places, first, edges = plan_sizes(block_indices.shape, sequences, block_size, chunk)

    def ints(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    plan = BlockPlan(
        entries=ints(entries),
        places=ints(places),
        first=ints(first),
        count=ints(first),
        edges=ints(edges),
        block_size=block_size,
    )
    if cleared:
        clear(plan.entries)
    # If cu_seqlens is malformed, tokens may choose bins whose edges are never written.
    if cleared or sequences is not None:
        clear(plan.edges)
    if tokens == 0:
        return plan
    index = block_indices.view(tokens, heads, chosen)
    cu, packed, longest = index, sequences is not None, length
    if cu_seqlens is not None:
        cu, longest = cu_seqlens, tokens
    sequences = batch if sequences is None else sequences
    chunks, n_bins = plan.chunks, plan.n_bins
    longest_bins = cdiv(longest, block_size)
    edge_block = next_power_of_2(max(min(256, longest_bins), cdiv(longest_bins, GRID)))
    edges_kernel[(sequences, cdiv(longest_bins, edge_block))](
        *(cu, plan.edges, tokens, length),
        BLOCK_SIZE=block_size,
        PACKED=packed,
        BLOCK=edge_block,
    )
    words = chunk // 32
    row_bytes = heads * n_bins * words * 4
    at_once = max(1, min(chunks, BITS_BYTES // row_bytes))
    bits, before = (ints((at_once, heads * n_bins, words)) for _ in range(2))
    block_s = next_power_of_2(chosen)
    program_tokens = max(1, min(TOKENS, CHOICES // block_s))
    for c in range(0, chunks, at_once):
        here = min(at_once, chunks - c)
        clear(bits)
        end = min((c + here) * chunk, tokens)
        grid = (cdiv(end - c * chunk, program_tokens), heads)
        bins_kernel[grid](
            *(index, cu, plan.places, bits),
            *strides(index),
            *(heads, n_bins, sequences, length, c * chunk, end, chunk),
            S=chosen,
            BLOCK_S=block_s,
            BLOCK_SIZE=block_size,
            UNIQUE=unique,
            PACKED=packed,
            STEPS=max(1, sequences.bit_length()),
            TOKENS=program_tokens,
            num_warps=WARPS,
        )
        count, first = plan.count[c : c + here], plan.first[c : c + here]
        count_kernel[(here * heads * n_bins,)](
            bits,
            before,
            count,
            words,
            BLOCK=min(1024, next_power_of_2(words)),
            num_warps=1,
        )
        scan = min(SCAN, next_power_of_2(n_bins))
        first_kernel[(here * heads,)](count, first, n_bins, BLOCK=scan, num_warps=8)
        entries_kernel[grid](
            *(plan.places, bits, before, first, plan.entries[c:]),
            *(heads, n_bins, c * chunk, end, chunk),
            S=chosen,
            BLOCK_S=block_s,
            TOKENS=program_tokens,
            num_warps=WARPS,
        )
    return plan
