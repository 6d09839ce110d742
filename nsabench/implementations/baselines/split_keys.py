"""Spans and chosen blocks of a cache by Triton kernels that anybody would write first, for machines
that have torch alone: read in place, the keys of a row shared out among programs where there are
few rows, and their parts put together (flash-decoding). It is what paged attention does, and keeps
a ratio honest where no library is here.
"""

from __future__ import annotations

import importlib
import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported, implementation

MOST_SPLITS = 32
PROGRAMS_AN_SM = 2
TILES = (16, 64)  # keys of a tile, at least and at most
MOST_SPANS = 256  # that are held to tell which key was there before


@cache
def _kernels() -> Any:
    try:
        return importlib.import_module(f"{__package__}._split_keys_kernels")
    except ImportError as error:
        raise Unsupported(f"Triton cannot be imported: {error}") from error


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def splits_of(rows: int, tiles: int, multiprocessors: int) -> int:
    """Programs that share the keys of a row: a power of two, none of them without a tile, and
    together no more than fill the device some times over."""
    wanted = max(1, PROGRAMS_AN_SM * multiprocessors // rows)
    most = min(wanted, tiles, MOST_SPLITS)
    return 1 << (most.bit_length() - 1)


def _padded(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ranges: Tensor,
    sm_scale: float,
    selected: int,
    *,
    disjoint: bool,
    splits: int = 0,
) -> Tensor:
    """q [B,S,G,h,D], k [B,G,keys,D], v [B,G,keys,Dv], ranges int32 [B,S,G,n,2] -> [B,S,G,h,Dv].

    selected: keys that a query selects, about. disjoint: whether no two spans of a query overlap.
    splits: 0, as many as the device asks for. Raises `Unsupported` where Triton is not here, or
    spans are too many.
    """
    b, s, g, h, d = q.shape
    n, dv, rows = ranges.shape[3], v.shape[3], b * s * g
    if not disjoint and n > MOST_SPANS:
        raise Unsupported(f"{n} spans a query are over {MOST_SPANS}")
    q, k, v, ranges = (x.contiguous() for x in (q, k, v, ranges))
    tile = min(max(_padded(selected // n), TILES[0]), TILES[1])
    tiles = -(-selected // tile)
    splits = splits or splits_of(rows, tiles, _multiprocessors(q.device))
    out = torch.empty(b, s, g, h, dv, dtype=v.dtype, device=q.device)
    lse = torch.empty(rows, splits, h, dtype=torch.float32, device=q.device)
    # Parts are put together in float32.
    kind = torch.float32 if splits > 1 else v.dtype
    parts = out if splits == 1 else torch.empty(rows, splits, h, dv, dtype=kind, device=q.device)
    kernels = _kernels()
    blocks = {"BLOCK_H": _padded(h), "BLOCK_DV": _padded(dv)}
    kernels.spans_kernel[(rows, splits)](
        *(q, k, v, ranges, parts, lse, sm_scale * math.log2(math.e), k.shape[2], g, s, n),
        H=h,
        D=d,
        DV=dv,
        SPANS=1 << (n - 1).bit_length(),
        SPLITS=splits,
        DISJOINT=disjoint,
        BLOCK_N=tile,
        BLOCK_D=_padded(d),
        **blocks,
        num_warps=4,
        num_stages=2,
    )
    if splits > 1:
        kernels.merge_kernel[(rows,)](
            parts, lse, out, H=h, DV=dv, SPLITS=splits, **blocks, num_warps=4
        )
    return out


@implementation(
    op="selection_ranges",
    name="split_keys",
    role="baseline",
    devices=("cuda",),
    directions=("forward",),
    compiled_by="triton",
)
def split_keys(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, sm_scale: float, selected_len: int
) -> Tensor:
    """A program a query and group, or several; a key that spans share counts in the first."""
    return attend(q, k, v, ranges, sm_scale, selected_len, disjoint=False)


@implementation(
    op="decode_selected",
    name="split_keys",
    role="baseline",
    devices=("cuda",),
    compiled_by="triton",
)
def split_blocks(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, block_size: int, sm_scale: float
) -> Tensor:
    """The same, blocks being spans that do not overlap."""
    b, h = k.shape[:2]
    selected = min(ranges.shape[2] * block_size, k.shape[2])
    rows = q.reshape(b, 1, h, q.shape[1] // h, q.shape[2])
    out = attend(rows, k, v, ranges.unsqueeze(1), sm_scale, selected, disjoint=True)
    return out.reshape(b, q.shape[1], v.shape[3])
