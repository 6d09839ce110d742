"""Query-major forward: a program takes the query heads of a token and KV head, and their blocks.

It is faster than the block-major forward if there are few tokens (decode, short prompts), or if
groups are large. It needs no plan and no merge, but each token reads every block that it chose.
"""

from __future__ import annotations

import torch

from ...launch.device import on_its_device
from ...launch.sizes import head_dims, next_power_of_2, strides
from .kernels.query_major import query_major_kernel


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
    """Fill ``out`` [N, HQ, Dv] and ``lse`` [N, HQ] from q [N, HQ, D], k [N, H, D], v [N, H, Dv].

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
