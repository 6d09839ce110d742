"""The forwards of block selection: block-major, and query-major for few tokens.

In the block-major forward, a program loads one block of keys, for queries that chose the block.
Query-major loops read K and V of every chosen block from L2 for every query, which limits their
speed. The block-major forward reads K and V once for each work item, which is up to ``queries``
queries that chose the block. The price is a partial result of ``G * Dv`` values for each (query,
block), which is written and read once. The partial results of a chunk of tokens are merged by their
LSEs before the next chunk overwrites them. So the workspace has the size of one chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ...launch.device import on_its_device, runs_gluon
from ...launch.sizes import cdiv, head_dims, next_power_of_2, strides
from .config import BlockConfig, beyond_int32, hopper_fits
from .kernels.forward import forward_kernel, merge_kernel
from .kernels.query_major import query_major_kernel
from .plan import BlockPlan


@dataclass(frozen=True, slots=True)
class GatedSum:
    """The gated sum of three branches, which the merge kernel writes to ``total`` [N, HQ, Dv].

    compressed, near: the other two branches, [N, HQ, Dv]; ``near`` may be ``total`` itself. gates:
    [N, HQ, 3]. All are contiguous. kept: whether the selected branch is also stored, for the
    backward.
    """

    total: torch.Tensor
    compressed: torch.Tensor
    near: torch.Tensor
    gates: torch.Tensor
    kept: bool


@on_its_device
def block_major_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: BlockPlan,
    scale_log2: float,
    out: torch.Tensor,
    lse: torch.Tensor,
    heads: int,
    config: BlockConfig,
    gated: GatedSum | None = None,
) -> None:
    """Fill ``out`` [N, HQ, Dv] and ``lse`` [N, HQ] from q [N, HQ, D], k [N, H, D], v [N, H, Dv].

    A launch takes ``heads`` KV heads. The workspace grows with ``heads`` and the plan's chunk.
    With ``gated``, the gated sum is also written, and ``out`` and ``lse`` only if ``gated.kept``.
    """
    n, hq, d = q.shape
    h, dv = v.shape[1:]
    g, s = hq // h, plan.places.shape[2]
    items = plan.items(config.queries)
    segment = plan.entries.shape[2]
    part = torch.empty((heads * segment * g * dv,), dtype=q.dtype, device=q.device)
    plse = torch.empty((heads * segment * g,), dtype=torch.float32, device=q.device)
    dims = head_dims(d, dv)
    block_s = next_power_of_2(s)
    merge_rows = max(4, min(32, 512 // dims["BLOCK_DV"], 1024 // block_s))
    main, constants = _main(q, k, v, plan.block_size, config)
    others = (out, out, out, out)
    if gated is not None:
        others = (gated.total, gated.compressed, gated.near, gated.gates)
    for c in range(plan.chunks):
        first = c * plan.chunk
        last = min(first + plan.chunk, n)
        for first_head in range(0, h, heads):
            here = min(heads, h - first_head)
            main[(items.shape[2], here)](
                *(q, k, v, part, plse),
                *(plan.entries[c], items[c], plan.first[c], plan.count[c], plan.edges),
                *strides(q, k, v),
                *(plan.n_bins, segment, first, first_head, scale_log2),
                **constants,
            )
            merge_kernel[(cdiv((last - first) * g, merge_rows), here)](
                *(part, plse, plan.places, out, lse, *others),
                *(h, segment, first, last, first_head),
                S=s,
                BLOCK_S=block_s,
                G=g,
                DV=dv,
                BLOCK_DV=dims["BLOCK_DV"],
                ROWS=merge_rows,
                GATED=gated is not None,
                KEPT=gated is None or gated.kept,
                num_warps=1,
            )


def _main(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_size: int, config: BlockConfig
) -> tuple[Any, dict[str, Any]]:
    """Return the kernel of the main launch, with its constants and options.

    Both kernels take the same arguments. The kernel in Gluon fixes the numbers of rows and warps.
    """
    hq, d = q.shape[1:]
    h, dv = v.shape[1:]
    g = hq // h
    queries, wide = config.queries, beyond_int32(q)
    options = {"num_stages": 1, "maxnreg": config.registers}
    if runs_gluon(q.device) and hopper_fits(q, k, v, block_size):
        # Imported here, since some versions of Triton cannot import it.
        from .kernels.hopper import hopper_forward_kernel

        constants = {"G": g, "D": d, "DV": dv, "QUERIES": queries, "WIDE": wide}
        return hopper_forward_kernel, {**constants, "num_warps": 4, **options}
    constants = {
        "G": g,
        "PAD_G": next_power_of_2(g),
        **head_dims(d, dv),
        "BLOCK_SIZE": block_size,
        "QUERIES": queries,
        "ROWS": config.rows,
        "AHEAD": config.ahead,
        "WIDE": wide,
    }
    return forward_kernel, {**constants, "num_warps": config.warps, **options}


@on_its_device
def query_major_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    index: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    length: int,
    block_size: int,
    scale_log2: float,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """Fill ``out`` and ``lse`` as ``block_major_forward`` does, without a plan or a merge.

    A program takes the query heads of a token and a KV head, and reads every block that the token
    chose. This kernel is faster for few tokens (decode, short prompts) and for large groups.

    Args:
        index: int32 [N, H, S].
        cu_seqlens: int32 [sequences + 1]. None: each sequence has ``length`` tokens.
    """
    n, hq, d = q.shape
    h, dv = v.shape[1:]
    s, group = index.shape[2], hq // h
    sequences = n // length if cu_seqlens is None else cu_seqlens.numel() - 1
    query_major_kernel[(n, h)](
        *(q, k, v, index, index if cu_seqlens is None else cu_seqlens, out, lse),
        *strides(q, k, v, index),
        *(h, sequences, length, scale_log2),
        S=s,
        BLOCK_S=next_power_of_2(s),
        G=group,
        BLOCK_G=max(16, next_power_of_2(group)),
        **head_dims(d, dv),
        BLOCK_SIZE=block_size,
        PACKED=cu_seqlens is not None,
        STEPS=max(1, sequences.bit_length()),
        num_warps=2 if group <= 16 and max(d, dv) <= 128 and q.dtype.itemsize == 2 else 4,
        num_stages=2,
    )
