"""Block selection by plain Triton kernels whose programs take one query, as in public libraries."""

from __future__ import annotations

import importlib
import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations._register import baseline
from nsabench.implementations.baselines.selection_blocks import each_once
from nsabench.implementations.torch_attention import is_power_of_two, sequence_starts

PIECE = 512  # queries of a program of the backward; several may share the queries of a block
TILE = 64  # rows of a tile: each query has a row for each head of the group


@cache
def kernels() -> Any:
    try:
        return importlib.import_module(f"{__package__}._kernels")
    except ImportError as error:
        raise Unsupported(f"Triton cannot be imported: {error}") from error


def tile_size(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


class _Selected(torch.autograd.Function):  # type: ignore[misc]
    """Attention of q [N,HQ,D] to the blocks `rows` of k, v. `_kernels` explains the shapes."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, begin: Tensor, sizes: Any
    ) -> Tensor:
        scale, size, _ = sizes
        tokens, hq, _ = q.shape
        out = torch.empty(tokens, hq, v.shape[2], dtype=v.dtype, device=q.device)
        lse = torch.empty(tokens, hq, dtype=torch.float32, device=q.device)
        kernels().forward_kernel[(tokens, k.shape[1])](
            *(q, k, v, rows, begin, out, lse, scale * math.log2(math.e)),
            **_constants(q, k, v, size),
            S=rows.shape[2],
        )
        ctx.save_for_backward(q, k, v, rows, begin, out, lse)
        ctx.sizes = sizes
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, rows, begin, out, lse = ctx.saved_tensors
        scale, size, ends = ctx.sizes
        do = grad_out.contiguous()
        delta = (out.float() * do.float()).sum(-1)
        dq = torch.empty_like(q)
        constants = _constants(q, k, v, size)
        scales = (scale * math.log2(math.e), scale)
        kernels().query_gradient_kernel[(q.shape[0], k.shape[1])](
            *(q, k, v, rows, begin, lse, delta, do, dq, *scales),
            **constants,
            S=rows.shape[2],
        )
        dk, dv = (torch.zeros_like(x, dtype=torch.float32) for x in (k, v))
        first, owner, piece, bounds, queries, blocks = _invert_selection(rows, begin, ends, size)
        kernels().key_gradient_kernel[(owner.numel(),)](
            *(q, k, v, first, owner, piece, bounds, queries, lse, delta, do, dk, dv, *scales),
            blocks,
            **constants,
            PIECE=PIECE,
            QUERIES=max(1, TILE // constants["BLOCK_G"]),
        )
        return dq, dk.to(k.dtype), dv.to(v.dtype), None, None, None


def _constants(q: Tensor, k: Tensor, v: Tensor, size: int) -> dict[str, int]:
    group = q.shape[1] // k.shape[1]
    given = {"H": k.shape[1], "G": group, "D": k.shape[2], "DV": v.shape[2], "SIZE": size}
    given |= {"num_warps": 4, "num_stages": 2}
    blocks = {"BLOCK_G": group, "BLOCK_D": k.shape[2], "BLOCK_DV": v.shape[2]}
    return given | {name: tile_size(n) for name, n in blocks.items()}


def _invert_selection(rows: Tensor, begin: Tensor, ends: Tensor, size: int) -> tuple[Any, ...]:
    """List the queries that chose each block and head, as `key_gradient_kernel` reads them."""
    # `base` is the number of a sequence's first block. Earlier sequences may end in partial blocks.
    tokens, heads, slots = rows.shape
    device = rows.device
    sequence = torch.searchsorted(ends, torch.arange(tokens, device=device), right=True)
    before = torch.cat([ends.new_zeros(1), ends[:-1]])
    base = before // size + torch.arange(ends.numel(), device=device)
    blocks = tokens // size + ends.numel() + 1
    head = torch.arange(heads, device=device).view(1, heads, 1)
    owner = (base[sequence].view(-1, 1, 1) + rows) * heads + head
    owner = owner.where(rows >= 0, blocks * heads).flatten()
    ordered, order = owner.sort(stable=True)
    queries = (order // (heads * slots)).to(torch.int32)
    bounds = torch.searchsorted(ordered, torch.arange(blocks * heads + 1, device=device))
    pieces = (bounds.diff() + PIECE - 1) // PIECE
    last = pieces.cumsum(0)
    # The host does not know how many programs have work, so launch as many as may be needed.
    program = torch.arange(owner.numel() // PIECE + blocks * heads, device=device)
    of_program = torch.searchsorted(last, program, right=True)
    piece = program - torch.cat([last.new_zeros(1), last])[of_program]
    place = torch.arange(blocks, device=device)
    of_place = torch.searchsorted(base, place, right=True) - 1
    first = before[of_place] + (place - base[of_place]) * size
    behind = torch.minimum(first + size, ends[of_place])
    int32 = (x.to(torch.int32) for x in (torch.cat([first, behind]), of_program, piece, bounds))
    return (*int32, queries, blocks)


@baseline("selection_blocks", "query_major", compiled_by="triton")
def query_major(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, *packing: Tensor, **options: Any
) -> Tensor:
    block_size = options["block_size"]
    if block_size < 16 or not is_power_of_two(block_size):
        raise Unsupported("it needs block sizes of 16, 32, 64, …")
    b, t, hq, _ = q.shape
    start = sequence_starts(t, packing, q.device)
    own = ((torch.arange(t, device=q.device) - start) // block_size).view(t, 1, 1)
    rows = each_once(blocks.where(blocks <= own, -1)).flatten(0, 1).contiguous()
    offset = torch.arange(b, device=q.device).view(b, 1) * t
    begin = (offset + start).flatten().to(torch.int32)
    ends = packing[0][1:].long() if packing else (offset + t).flatten()
    flat = (x.flatten(0, 1).contiguous() for x in (q, k, v))
    sizes = (options["sm_scale"], block_size, ends.contiguous())
    return _Selected.apply(*flat, rows, begin, sizes).view(b, t, hq, -1)
