"""Attention to spans and selected blocks by Triton kernels that read K and V in place."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations._register import baseline
from nsabench.implementations.baselines.query_major import kernels, tile_size

MOST_SPLITS = 32
PROGRAMS_AN_SM = 2
TILES = (16, 64)  # the fewest and the most keys of a tile
MOST_SPANS = 256  # the most spans of a row; a program compares all, so that each key counts once


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def splits_of(rows: int, tiles: int, multiprocessors: int) -> int:
    wanted = max(1, PROGRAMS_AN_SM * multiprocessors // rows)
    most = min(wanted, tiles, MOST_SPLITS)
    return 1 << (most.bit_length() - 1)


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
    """Attend from q [B,S,G,h,D] to the spans `ranges` int32 [B,S,G,n,2] of k, v [B,G,keys,...].

    A query selects about `selected` keys. `disjoint` says whether its spans never overlap. `splits`
    programs share a row; 0 stands for as many as suit the device.
    """
    b, s, g, h, d = q.shape
    n, dv, rows = ranges.shape[3], v.shape[3], b * s * g
    if not disjoint and n > MOST_SPANS:
        raise Unsupported(f"{n} spans a query are more than {MOST_SPANS}")
    q, k, v, ranges = (x.contiguous() for x in (q, k, v, ranges))
    tile = min(max(tile_size(selected // n), TILES[0]), TILES[1])
    tiles = -(-selected // tile)
    splits = splits or splits_of(rows, tiles, _multiprocessors(q.device))
    out = torch.empty(b, s, g, h, dv, dtype=v.dtype, device=q.device)
    lse = torch.empty(rows, splits, h, dtype=torch.float32, device=q.device)
    kind = torch.float32 if splits > 1 else v.dtype
    parts = out if splits == 1 else torch.empty(rows, splits, h, dv, dtype=kind, device=q.device)
    blocks = {"BLOCK_H": tile_size(h), "BLOCK_DV": tile_size(dv)}
    kernels().spans_kernel[(rows, splits)](
        *(q, k, v, ranges, parts, lse, sm_scale * math.log2(math.e), k.shape[2], g, s, n),
        H=h,
        D=d,
        DV=dv,
        SPANS=1 << (n - 1).bit_length(),
        SPLITS=splits,
        DISJOINT=disjoint,
        BLOCK_N=tile,
        BLOCK_D=tile_size(d),
        **blocks,
        num_warps=4,
        num_stages=2,
    )
    if splits > 1:
        kernels().merge_kernel[(rows,)](
            parts, lse, out, H=h, DV=dv, SPLITS=splits, **blocks, num_warps=4
        )
    return out


@baseline("selection_ranges", "split_keys", directions=("forward",), compiled_by="triton")
def split_keys(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, **options: Any) -> Tensor:
    selected = options["selected_len"]
    return attend(q, k, v, ranges, options["sm_scale"], selected, disjoint=False)


@baseline("decode_selected", "split_keys", compiled_by="triton")
def split_blocks(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, **options: Any) -> Tensor:
    b, h = k.shape[:2]
    selected = min(ranges.shape[2] * options["block_size"], k.shape[2])
    rows = q.reshape(b, 1, h, q.shape[1] // h, q.shape[2])
    out = attend(rows, k, v, ranges.unsqueeze(1), options["sm_scale"], selected, disjoint=True)
    return out.reshape(b, q.shape[1], v.shape[3])
