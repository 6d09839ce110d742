"""Kernels that build the inverted index. ``selection/blocks/plan.py`` explains its terms."""

from __future__ import annotations

from ....jit.compat import any_alignment, tl, triton
from ....jit.sequences import sequence_of

UNROLLED = tl.constexpr(16)
"""How many choices of a token an unrolled loop step takes. With many more, compiling is slow."""
CHUNK_AND_HEAD = ("first_token", "end_token", "first_head")
"""Arguments that differ between launches. If Triton specialised them, it would compile each kernel
several times."""
LISTS = any_alignment("items_ptr", "first_ptr", "count_ptr")
"""Pointers into lists of a chunk, which may begin at any address."""


@triton.jit
def _popcount(x):
    x = x.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit(do_not_specialize=CHUNK_AND_HEAD)
def bins_kernel(
    index_ptr,
    cu_ptr,
    places_ptr,
    bits_ptr,
    i_st,
    i_sh,
    H,
    n_bins,
    sequences,
    length,
    first_token,
    end_token,
    chunk,
    S: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    UNIQUE: tl.constexpr,
    PACKED: tl.constexpr,
    STEPS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Program (tokens, head): store each choice's bin (or -1) in ``places``, and set its bit.

    If UNIQUE, no token chooses a block twice. If PACKED, sequences begin where ``cu`` says;
    otherwise all have ``length`` tokens.
    """
    t = first_token + tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    h = tl.program_id(1)
    seen = t < end_token
    if PACKED:
        sequence = sequence_of(cu_ptr, t, sequences, STEPS)
        begin = tl.load(cu_ptr + sequence, mask=seen, other=0)
        # Tokens in no sequence choose nothing.
        seen = seen & (begin >= 0) & (t >= begin) & (t < tl.load(cu_ptr + sequence + 1, mask=seen))
    else:
        sequence = t // length
        begin = sequence * length
    s = tl.arange(0, BLOCK_S)
    row = index_ptr + t.to(tl.int64) * i_st + h * i_sh
    held = (t < end_token)[:, None] & (s[None, :] < S)
    block = tl.load(row[:, None] + s[None, :], mask=held & seen[:, None], other=-1)
    valid = (block >= 0) & (block <= ((t - begin) // BLOCK_SIZE)[:, None])
    if not UNIQUE:
        for first in range(0, S, UNROLLED):
            for step in tl.static_range(S if S < UNROLLED else UNROLLED):
                earlier = first + step
                same = tl.load(row + earlier, mask=seen & (earlier < S), other=-1)
                valid = valid & ((s[None, :] <= earlier) | (block != same[:, None]))
    chosen = (begin // BLOCK_SIZE + sequence)[:, None] + block
    offset = (t.to(tl.int64) * H + h) * S
    tl.store(
        places_ptr + offset[:, None] + s[None, :],
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
def count_kernel(bits_ptr, before_ptr, count_ptr, words, BLOCK: tl.constexpr):
    """Program (chunk, head, bin): count the bits before each word, and all bits."""
    row = tl.program_id(0).to(tl.int64)
    total = 0
    for w0 in range(0, words, BLOCK):
        w = w0 + tl.arange(0, BLOCK)
        ones = _popcount(tl.load(bits_ptr + row * words + w, mask=w < words, other=0))
        tl.store(before_ptr + row * words + w, total + tl.cumsum(ones, 0) - ones, mask=w < words)
        total += tl.sum(ones, 0)
    tl.store(count_ptr + row, total)


@triton.jit
def first_kernel(count_ptr, first_ptr, bins, BLOCK: tl.constexpr):
    """Program (chunk, head): store where the entries of each bin begin."""
    row = tl.program_id(0).to(tl.int64) * bins
    total = 0
    for b0 in range(0, bins, BLOCK):
        b = b0 + tl.arange(0, BLOCK)
        count = tl.load(count_ptr + row + b, mask=b < bins, other=0)
        tl.store(first_ptr + row + b, total + tl.cumsum(count, 0) - count, mask=b < bins)
        total += tl.sum(count, 0)


@triton.jit(do_not_specialize=CHUNK_AND_HEAD)
def entries_kernel(
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
    """Program (tokens, head): enter each token in the lists of its bins, and store the places."""
    t = first_token + tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    h = tl.program_id(1)
    s = tl.arange(0, BLOCK_S)
    offset = (t.to(tl.int64) * H + h) * S
    held = (t < end_token)[:, None] & (s[None, :] < S)
    spot = places_ptr + offset[:, None] + s[None, :]
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
def edges_kernel(
    cu_ptr,
    edges_ptr,
    N,
    length,
    BLOCK_SIZE: tl.constexpr,
    PACKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (sequence, blocks): store the first key of each bin, and the end of its keys."""
    b = tl.program_id(0)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if PACKED:
        begin = tl.load(cu_ptr + b)
        end = tl.minimum(tl.load(cu_ptr + b + 1), N)
    else:
        begin = b * length
        end = begin + length
    key = begin + j * BLOCK_SIZE
    bin_ = begin // BLOCK_SIZE + b + j
    tl.store(edges_ptr + bin_ * 2, key, mask=(begin >= 0) & (key < end))
    tl.store(
        edges_ptr + bin_ * 2 + 1, tl.minimum(key + BLOCK_SIZE, end), mask=(begin >= 0) & (key < end)
    )


@triton.jit
def items_kernel(
    first_ptr, count_ptr, items_ptr, bins, slots, QUERIES: tl.constexpr, BLOCK: tl.constexpr
):
    """Program (bins, (chunk, head)): store the work items of each bin in its slots, and (-1, -1) in
    idle slots."""
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    segment = tl.program_id(1).to(tl.int64)
    first_ptr += segment * bins
    count_ptr += segment * bins
    items_ptr += segment * slots * 2
    first = tl.load(first_ptr + b, mask=b < bins, other=0)
    count = tl.load(count_ptr + b, mask=b < bins, other=0)
    slot = first // QUERIES + b
    # How many slots this bin has, which is at least one.
    own = tl.where(b < bins, (first + count) // QUERIES + b + 1 - slot, 0)
    for i in range(tl.max(own, 0)):
        busy = i * QUERIES < count
        tl.store(items_ptr + (slot + i) * 2, tl.where(busy, b, -1), mask=i < own)
        tl.store(items_ptr + (slot + i) * 2 + 1, tl.where(busy, i * QUERIES, -1), mask=i < own)
    # Together, all programs fill the slots after the last bin's slots.
    last = tl.load(first_ptr + bins - 1) + tl.load(count_ptr + bins - 1)
    behind = last // QUERIES + bins
    for start in range(behind + tl.program_id(0) * BLOCK, slots, tl.num_programs(0) * BLOCK):
        at = (start + tl.arange(0, BLOCK)) * 2
        tl.store(items_ptr + at, -1, mask=at < slots * 2)
        tl.store(items_ptr + at + 1, -1, mask=at < slots * 2)
