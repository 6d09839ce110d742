"""Choose a block kernel, and how it is launched, by rules from the shapes of a call.

docs/explanation/kernels/blocks.md says why; notes/blocks.md holds the sweeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...launch.checks import require
from ...launch.descriptors import heads_in_rows
from ...launch.device import device_limits
from ...launch.sizes import cdiv, next_power_of_2

WORKSPACE_BYTES = 1 << 30
NO_CHUNK = 32
"""The chunk size of a plan without tokens, which has no chunks."""
BITS_BYTES = 64 << 20
"""Bytes for the bits from which a plan is built. If more are needed, there are several passes."""
PROGRAMS = 2048
"""How many work items keep a large device busy to the end of a launch."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Sizes of a call: N tokens, HQ query and H KV heads, S blocks of ``block_size`` per token."""

    n: int
    hq: int
    h: int
    s: int
    d: int
    dv: int
    block_size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def group(self) -> int:
        return self.hq // self.h

    @property
    def plan_bytes(self) -> int:
        """Return the bytes of the plan's lists, and of its bits while it is built."""
        bits = self.n * self.h * cdiv(self.n, self.block_size) // 8
        return 8 * self.n * self.h * self.s + 2 * min(bits, BITS_BYTES)


def shape_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: int, block_size: int
) -> BlockShape:
    """Return the sizes of a call with q [B, T, HQ, D] and ``s`` blocks per token."""
    b, t, hq, d = q.shape
    h, dv = k.shape[2], v.shape[3]
    return BlockShape(b * t, hq, h, s, d, dv, block_size, q.dtype, q.device)


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """A launch: a tile has ``rows`` rows (query, head), a program at most ``queries`` queries.

    If ``ahead``, the forward loads the token numbers of a tile during the work on the tile before.
    """

    rows: int
    queries: int
    warps: int
    registers: int | None
    ahead: bool = False


def beyond_int32(*tensors: torch.Tensor) -> bool:
    """Return whether a tensor has an element 2**31 or more elements after its first."""
    return any(
        sum((n - 1) * abs(stride) for n, stride in zip(x.shape, x.stride(), strict=True)) >= 1 << 31
        for x in tensors
    )


def hopper_fits(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_size: int) -> bool:
    """Return whether ``kernels/hopper.py`` takes q [N, HQ, D], k [N, H, D] and v [N, H, Dv].

    The kernel's tiles have 64 rows, a multiple of the group, and 64 keys, with 64 or 128 columns.
    It copies 16 bytes at a time, so the compiler must know that addresses are multiples of 16
    bytes. Triton tells the compiler only about multiples of 16, so strides must be such multiples.
    """
    return (
        block_size == 64
        and q.dtype in (torch.float16, torch.bfloat16)
        and all(x.shape[2] in (64, 128) for x in (q, v))
        and 64 % (q.shape[1] // k.shape[1]) == 0
        and all(_in_16_bytes(x) for x in (q, k, v))
    )


def hopper_backward_fits(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    block_size: int,
) -> bool:
    """Return whether ``kernels/hopper_backward.py`` takes these tensors; lse [N, HQ], do [N, HQ,
    Dv]. Besides what ``hopper_fits`` says, it needs D = Dv = 128, offsets that fit in 32 bits, and
    head strides that divide the token strides."""
    return (
        hopper_fits(q, k, v, block_size)
        and q.shape[2] == v.shape[2] == 128
        and do.dtype == q.dtype
        and _in_16_bytes(do)
        and all(heads_in_rows(x) for x in (q, do))
        and not beyond_int32(q, do, lse)
    )


def _in_16_bytes(x: torch.Tensor) -> bool:
    """Return whether the compiler can know that rows of x [N, H, D] are aligned to 16 bytes."""
    aligned = x.data_ptr() % 16 == 0 and all(stride % 16 == 0 for stride in x.stride()[:2])
    return x.stride(2) == 1 and aligned


@dataclass(frozen=True, slots=True)
class Workspace:
    """How many tokens a chunk has, and how many KV heads a launch takes."""

    chunk: int
    heads: int


WIDE_SHARED = 200 << 10
"""GPUs with more bytes of shared memory for a program multiply transposed operands in place."""


def _forward_bytes(shape: BlockShape, rows: int) -> int:
    """Return an upper bound of the shared memory of a forward tile: K and V, q, the scores."""
    d, dv = next_power_of_2(shape.d), next_power_of_2(shape.dv)
    held = shape.block_size * (d + dv) + rows * d + 2 * rows * shape.block_size
    return held * shape.dtype.itemsize


def _backward_bytes(shape: BlockShape, rows: int) -> int:
    """Return the shared memory of a compiled backward tile: K and V, q and d_out, the scores.

    GPUs with ``WIDE_SHARED`` or less also keep a transposed K.
    """
    d, dv = next_power_of_2(shape.d), next_power_of_2(shape.dv)
    wide = device_limits(shape.device).shared_bytes > WIDE_SHARED
    held = (shape.block_size + rows) * (d + dv) + rows * shape.block_size
    if not wide:
        held += shape.block_size * d
    return held * shape.dtype.itemsize


def _tile_rows(shape: BlockShape, of: str, room: Callable[[BlockShape, int], int]) -> int:
    """Return the rows of a tile: the most up to 64 (fp32: 32) that fit, at least a group's heads.

    Raises:
        ValueError: even the fewest rows do not fit.
    """
    padded_group = next_power_of_2(shape.group)
    if shape.dtype.itemsize == 4:
        # IEEE fp32 products run on CUDA cores, with whole operands in registers.
        return max(32, padded_group)
    limit = device_limits(shape.device).shared_bytes
    rows = 64
    while rows > 16 and room(shape, rows) > limit:
        rows //= 2
    rows = max(rows, padded_group)
    require(
        room(shape, rows) <= limit,
        f"block_selection_attention: the {of} with D={shape.d}, Dv={shape.dv}, block_size="
        f"{shape.block_size} and {shape.group} query heads per key head needs "
        f"{room(shape, rows) >> 10} KiB of shared memory, but a program has only {limit >> 10} KiB "
        f"on {shape.device}; take a smaller block_size",
    )
    return rows


def forward_config(shape: BlockShape) -> BlockConfig:
    """Return the launch of the forward. An item has about 512 rows, or 64 queries if that is more.
    So K and V are rarely loaded, and programs end at about the same time."""
    rows = _tile_rows(shape, "forward", _forward_bytes)
    wide = max(shape.d, shape.dv) > 128
    # 128 registers let four programs of four warps share a multiprocessor.
    plain = shape.dtype.itemsize == 4 or wide
    queries = max(64, 512 // shape.group)
    # With a large group, a tile has few tokens, so the tokens of the next tile fit in registers.
    ahead = not plain and shape.group >= 16
    return BlockConfig(rows, queries, 8 if wide else 4, None if plain else 128, ahead)


def _backward_queries(shape: BlockShape) -> int:
    queries = next_power_of_2(shape.n * shape.h * shape.s // PROGRAMS)
    return min(max(queries, 64), min(1024, max(64, 8192 // shape.group)))


def backward_config(shape: BlockShape) -> BlockConfig:
    """Return the launch of the backward. In large calls, long items write dK and dV less often."""
    warps = 8 if max(shape.d, shape.dv) > 128 else 4
    return BlockConfig(
        _tile_rows(shape, "backward", _backward_bytes), _backward_queries(shape), warps, None
    )


def _even(n: int, most: int) -> int:
    """Return the length, a multiple of 32 and at most ``most``, of even chunks of n tokens."""
    return min(cdiv(cdiv(n, cdiv(n, most)), 32) * 32, most)


def _too_small(cap: int, need: int) -> ValueError:
    return ValueError(
        f"block_selection_attention: workspace_bytes={cap} is too small; pass at least {need}"
    )


def forward_workspace(shape: BlockShape, cap: int) -> Workspace:
    """Return the workspace of the most heads (at least one) that allow chunks of 1,024 tokens."""
    entry = shape.group * (shape.dv * shape.dtype.itemsize + 4)
    left = cap - shape.plan_bytes
    if left < 32 * shape.s * entry:
        raise _too_small(cap, shape.plan_bytes + 32 * shape.s * entry)
    heads = min(shape.h, max(left // (1024 * shape.s * entry), 1))
    most = left // (heads * shape.s * entry) // 32 * 32
    return Workspace(_even(shape.n, most), heads)


def backward_workspace(shape: BlockShape, cap: int) -> Workspace:
    """Return the workspace with the fewest launches; among several, that with the longest chunks.

    It holds partial dQ, fp32 sums of dK and dV, and sums of each block's items except the first.
    """
    width = shape.d + shape.dv
    left = cap - 8 * shape.n * shape.h * shape.s - 4 * shape.n * shape.hq
    sums = 4 * shape.n * width
    entry = shape.group * shape.d * shape.dtype.itemsize
    entry += cdiv(4 * shape.block_size * width, _backward_queries(shape))
    best, fewest = None, 0
    for heads in range(1, shape.h + 1):
        most = (left // heads - sums - 4 * shape.block_size * width) // (shape.s * entry)
        if most < 32:
            break
        chunk = _even(shape.n, most // 32 * 32)
        launches = cdiv(shape.h, heads) * cdiv(shape.n, chunk)
        if best is None or launches < fewest:
            best, fewest = Workspace(chunk, cdiv(shape.h, cdiv(shape.h, heads))), launches
    if best is None:
        need = cap - left + sums + 4 * shape.block_size * width + 32 * shape.s * entry
        raise _too_small(cap, need)
    return best


def heads_at_once(shape: BlockShape, chunk: int, room: Workspace) -> int:
    """Return how many KV heads a launch takes in workspace ``room``, if the chunk is ``chunk``."""
    return min(shape.h, max(room.chunk * room.heads // chunk, 1))


def query_major_wins(shape: BlockShape) -> bool:
    """Return whether the query-major kernel is faster than a plan and the block-major kernels.

    The estimate uses the rates, in bytes/us, at which the kernels load from L2 and from memory.
    These rates were measured on an H200. For other devices, they are scaled by the data sheets.
    """
    if shape.device.type != "cuda":
        return shape.n <= 64
    major, minor = torch.cuda.get_device_capability(shape.device)
    cache, memory = {(8, 0): (4.5e6, 1.5e6), (9, 0): (8.2e6, 3.5e6), (10, 0): (1e7, 5.5e6)}.get(
        (major, minor), (4.0e6, 0.8e6)
    )
    entries = shape.n * shape.h * shape.s
    item = shape.dtype.itemsize
    direct = entries * shape.block_size * (shape.d + shape.dv) * item / cache
    rows = entries * shape.group * item
    # The plan's launches take about 25 us.
    return direct < 25 + rows * shape.d / cache + rows * 2 * shape.dv / memory
