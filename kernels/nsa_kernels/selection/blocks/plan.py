"""Which queries chose a block of keys: the inverted index behind block-major attention.

Tokens of all sequences are counted through (0 … N - 1); every sequence has its blocks of
``block_size`` keys, counted through as *bins* (sequence b's block j is bin ``cu[b] // block_size +
b + j``). The index lists, for every chunk of tokens, KV head and bin, the tokens that chose it, in
ascending order, so that what is summed over them does not depend on timing.

It is built on the device without waiting for it: one bit a (bin, token), set with atomic or (which
also makes the result independent of order), counted, and turned into positions by prefix sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...jit.compat import tl, triton
from ...launch.checks import cdiv, next_power_of_2, on_its_device
from .config import BITS_BYTES

TOKENS = 32
"""Tokens a program of the passes over tokens."""
WARPS = 4
CHOICES = 1024
"""The most choices of such a program, so that its code does not grow with S."""
SCAN = 4096
"""Bins a step of the running sum."""
UNROLLED = tl.constexpr(16)
"""Choices of a token in a step of a loop: code for each of 128 takes minutes to compile."""
CHUNK_AND_HEAD = ("first_token", "end_token", "first_head")
"""Differ from launch to launch: specialised (0, 1, others), each would be compiled three times."""


@dataclass(frozen=True)
class BlockPlan:
    """The inverted index of ``block_indices``, for reuse by the backward and by other layers.

    N tokens, H KV heads, S chosen blocks a token, C chunks of ``chunk`` tokens, NB bins:

    - ``entries`` int32 [C, H, chunk * S], bin by bin the tokens that chose it, counted from the
      chunk's first;
    - ``places`` int32 [N, H, S], where a choice is among the entries of its chunk and head; -1
      where it is void, in the future, or named before in its row;
    - ``first`` int32 [C, H, NB], where a bin's entries begin; ``count`` int32, how many there are;
    - ``edges`` int32 [NB, 2], first key of a bin and the key behind its last.
    """

    entries: torch.Tensor
    places: torch.Tensor
    first: torch.Tensor
    count: torch.Tensor
    edges: torch.Tensor
    block_size: int

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
        """Work items of at most ``queries`` queries of one bin: int32 [C, H, slots, 2].

        Each is (bin, first query of the item within its bin), or (-1, -1) for an idle slot. Their
        number follows from the shapes alone: a bin that begins at entry e has the slots from
        ``e // queries`` plus its own number on.
        """
        chunks, heads, bins = self.first.shape
        slots = self.entries.shape[2] // queries + bins
        shape = (chunks, heads, slots, 2)
        items = torch.full(shape, -1, dtype=torch.int32, device=self.first.device)
        block = min(128, next_power_of_2(bins))
        _items_kernel[(cdiv(bins, block), chunks * heads)](
            self.first, self.count, items, bins, slots, QUERIES=queries, BLOCK=block
        )
        return items


@triton.jit
def _popcount(x):
    """Bits set in each int32 of ``x``."""
    x = x.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def sequence_of(cu_ptr, t, sequences, STEPS: tl.constexpr):
    """The last sequence that begins at or before each token of ``t`` and is not empty."""
    low = tl.zeros_like(t)
    high = low + sequences
    for _ in tl.static_range(STEPS):
        middle = (low + high) // 2
        right = tl.load(cu_ptr + middle) <= t
        low = tl.where(right, middle, low)
        high = tl.where(right, high, middle)
    return low


@triton.jit(do_not_specialize=CHUNK_AND_HEAD)
def _bins_kernel(
    index_ptr,
    cu_ptr,
    places_ptr,
    bits_ptr,
    i_st,
    i_sh,
    i_ss,
    H,
    n_bins,
    sequences,
    first_token,
    end_token,
    chunk,
    S: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    STEPS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Program (tokens, head): the bin of every choice into its place, and its bit."""
    t = first_token + tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    h = tl.program_id(1)
    seen = t < end_token
    sequence = sequence_of(cu_ptr, t, sequences, STEPS)
    begin = tl.load(cu_ptr + sequence, mask=seen, other=0)
    # Tokens in no sequence choose nothing.
    seen = seen & (begin >= 0) & (t >= begin) & (t < tl.load(cu_ptr + sequence + 1, mask=seen))
    s = tl.arange(0, BLOCK_S)
    row = index_ptr + t.to(tl.int64) * i_st + h * i_sh
    held = (t < end_token)[:, None] & (s[None, :] < S)
    block = tl.load(row[:, None] + s[None, :] * i_ss, mask=held & seen[:, None], other=-1)
    valid = (block >= 0) & (block <= ((t - begin) // BLOCK_SIZE)[:, None])
    for first in range(0, S, UNROLLED):
        for step in tl.static_range(S if S < UNROLLED else UNROLLED):
            earlier = first + step
            same = tl.load(row + earlier * i_ss, mask=seen & (earlier < S), other=-1)
            valid = valid & ((s[None, :] <= earlier) | (block != same[:, None]))
    chosen = (begin // BLOCK_SIZE + sequence)[:, None] + block
    at = (t.to(tl.int64) * H + h) * S
    tl.store(
        places_ptr + at[:, None] + s[None, :],
        tl.where(valid, chosen, -1),
        mask=held,
    )
    local = t - first_token
    words = chunk // 32
    row_of_bits = ((local // chunk) * H + h).to(tl.int64)[:, None] * n_bins + chosen
    word = row_of_bits * words + ((local % chunk) // 32)[:, None]
    bit = (tl.full([TOKENS], 1, tl.int32) << (local % 32))[:, None]
    tl.atomic_or(bits_ptr + word, tl.broadcast_to(bit, chosen.shape), mask=valid, sem="relaxed")


@triton.jit
def _count_kernel(bits_ptr, before_ptr, count_ptr, words, BLOCK: tl.constexpr):
    """Program (chunk, head, bin): the bits set before each word, and all of them."""
    row = tl.program_id(0).to(tl.int64)
    total = 0
    for w0 in range(0, words, BLOCK):
        w = w0 + tl.arange(0, BLOCK)
        ones = _popcount(tl.load(bits_ptr + row * words + w, mask=w < words, other=0))
        tl.store(before_ptr + row * words + w, total + tl.cumsum(ones, 0) - ones, mask=w < words)
        total += tl.sum(ones, 0)
    tl.store(count_ptr + row, total)


@triton.jit
def _first_kernel(count_ptr, first_ptr, bins, BLOCK: tl.constexpr):
    """Program (chunk, head): where each bin's entries begin."""
    row = tl.program_id(0).to(tl.int64) * bins
    total = 0
    for b0 in range(0, bins, BLOCK):
        b = b0 + tl.arange(0, BLOCK)
        count = tl.load(count_ptr + row + b, mask=b < bins, other=0)
        tl.store(first_ptr + row + b, total + tl.cumsum(count, 0) - count, mask=b < bins)
        total += tl.sum(count, 0)


@triton.jit(do_not_specialize=CHUNK_AND_HEAD)
def _entries_kernel(
    places_ptr,
    bits_ptr,
    before_ptr,
    first_ptr,
    entries_ptr,
    H,
    n_bins,
    first_token,
    end_token,
    chunk,
    S: tl.constexpr,
    BLOCK_S: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Program (tokens, head): every choice into its bin's list; its bin becomes its place."""
    t = first_token + tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    h = tl.program_id(1)
    s = tl.arange(0, BLOCK_S)
    at = (t.to(tl.int64) * H + h) * S
    held = (t < end_token)[:, None] & (s[None, :] < S)
    spot = places_ptr + at[:, None] + s[None, :]
    chosen = tl.load(spot, mask=held, other=-1)
    valid = chosen >= 0
    local = t - first_token
    inside = local % chunk
    row = ((local // chunk) * H + h).to(tl.int64)[:, None] * n_bins + chosen
    word = row * (chunk // 32) + (inside // 32)[:, None]
    bits = tl.load(bits_ptr + word, mask=valid, other=0)
    lower = (tl.full([TOKENS], 1, tl.int32) << (inside % 32)) - 1
    place = tl.load(first_ptr + row, mask=valid, other=0)
    place += tl.load(before_ptr + word, mask=valid, other=0) + _popcount(bits & lower[:, None])
    segment = ((local // chunk) * H + h).to(tl.int64) * chunk * S
    target = segment[:, None] + place
    tl.store(entries_ptr + target, tl.broadcast_to(inside[:, None], place.shape), mask=valid)
    tl.store(spot, place, mask=valid)


@triton.jit
def _edges_kernel(cu_ptr, edges_ptr, N, BLOCK_SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Program (sequence, blocks): first and last key of its bins."""
    b = tl.program_id(0)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    begin = tl.load(cu_ptr + b)
    end = tl.minimum(tl.load(cu_ptr + b + 1), N)
    key = begin + j * BLOCK_SIZE
    bin_ = begin // BLOCK_SIZE + b + j
    tl.store(edges_ptr + bin_ * 2, key, mask=(begin >= 0) & (key < end))
    tl.store(
        edges_ptr + bin_ * 2 + 1, tl.minimum(key + BLOCK_SIZE, end), mask=(begin >= 0) & (key < end)
    )


@triton.jit
def _items_kernel(
    first_ptr, count_ptr, items_ptr, bins, slots, QUERIES: tl.constexpr, BLOCK: tl.constexpr
):
    """Program (bins, (chunk, head)): the work items of each bin into its own slots."""
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    segment = tl.program_id(1).to(tl.int64)
    first = tl.load(first_ptr + segment * bins + b, mask=b < bins, other=0)
    count = tl.load(count_ptr + segment * bins + b, mask=b < bins, other=0)
    slot = segment * slots + first // QUERIES + b
    for start in range(0, tl.max(count, 0), QUERIES):
        at = (slot + start // QUERIES) * 2
        tl.store(items_ptr + at, b, mask=start < count)
        tl.store(items_ptr + at + 1, tl.zeros_like(b) + start, mask=start < count)


def plan_sizes(
    index: torch.Size, sequences: int | None, block_size: int, chunk: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, int]]:
    """Sizes of a plan's entries, places, first (and count) and edges; ``index`` [B, T, H, S]."""
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
    block_indices: torch.Tensor, cu_seqlens: torch.Tensor | None, block_size: int, chunk: int
) -> BlockPlan:
    """The inverted index of ``block_indices`` int32 [B, T, H, S], tokens in chunks of ``chunk``.

    Args:
        cu_seqlens: int32 [sequences + 1], when B = 1 and the T tokens are packed sequences.
        chunk: a multiple of 32.
    """
    batch, length, heads, chosen = block_indices.shape
    device, tokens = block_indices.device, batch * length
    index = block_indices.view(tokens, heads, chosen)
    cu, longest = cu_seqlens, tokens
    if cu is None:
        cu = torch.arange(0, tokens + 1, length, dtype=torch.int32, device=device)
        longest = length
    sequences = cu.numel() - 1
    entries, places, first, edges = plan_sizes(block_indices.shape, sequences, block_size, chunk)

    def ints(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    plan = BlockPlan(
        # What no token chose is 0: an operator's results must not depend on old memory.
        entries=torch.zeros(entries, dtype=torch.int32, device=device),
        places=ints(places),
        first=ints(first),
        count=ints(first),
        edges=torch.zeros(edges, dtype=torch.int32, device=device),
        block_size=block_size,
    )
    chunks, n_bins = plan.chunks, plan.n_bins
    edge_block = min(256, next_power_of_2(cdiv(longest, block_size)))
    _edges_kernel[(sequences, cdiv(cdiv(longest, block_size), edge_block))](
        cu, plan.edges, tokens, BLOCK_SIZE=block_size, BLOCK=edge_block
    )
    words = chunk // 32
    row_bytes = heads * n_bins * words * 4
    at_once = max(1, min(chunks, BITS_BYTES // row_bytes))
    before = ints((at_once, heads * n_bins, words))
    block_s = next_power_of_2(chosen)
    program_tokens = max(1, min(TOKENS, CHOICES // block_s))
    for c in range(0, chunks, at_once):
        here = min(at_once, chunks - c)
        bits = torch.zeros((here, heads * n_bins, words), dtype=torch.int32, device=device)
        end = min((c + here) * chunk, tokens)
        grid = (cdiv(end - c * chunk, program_tokens), heads)
        _bins_kernel[grid](
            index,
            cu,
            plan.places,
            bits,
            *index.stride(),
            heads,
            n_bins,
            sequences,
            c * chunk,
            end,
            chunk,
            S=chosen,
            BLOCK_S=block_s,
            BLOCK_SIZE=block_size,
            STEPS=max(1, sequences.bit_length()),
            TOKENS=program_tokens,
            num_warps=WARPS,
        )
        count, first = plan.count[c : c + here], plan.first[c : c + here]
        _count_kernel[(here * heads * n_bins,)](
            bits, before, count, words, BLOCK=min(1024, next_power_of_2(words)), num_warps=1
        )
        scan = min(SCAN, next_power_of_2(n_bins))
        _first_kernel[(here * heads,)](count, first, n_bins, BLOCK=scan, num_warps=8)
        _entries_kernel[grid](
            plan.places,
            bits,
            before,
            first,
            plan.entries[c:],
            heads,
            n_bins,
            c * chunk,
            end,
            chunk,
            S=chosen,
            BLOCK_S=block_s,
            TOKENS=program_tokens,
            num_warps=WARPS,
        )
    return plan
