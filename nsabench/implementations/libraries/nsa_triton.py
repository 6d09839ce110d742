"""XunhaoLai's native-sparse-attention-triton: block selection for packed sequences.

Query-major forward; the backward walks blocks of keys over the queries that chose them. It reads a
row of indices up to its number of blocks, so rows are put in order in the call.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines.selection_varlen import every
from nsabench.implementations.libraries._calls import blocks_first, function, refuse_float32
from nsabench.ops.selection_blocks import OP
from nsabench.packages import Package
from nsabench.packages.catalogue import NSA_TRITON

TOPK = "native_sparse_attention.ops.triton.topk_sparse_attention:topk_sparse_attention"
TAKES = ("q", "k", "v", "topk_idx", "block_size", "cu_seqlens", "softmax_scale")
BLOCKS = (32, 64, 128, 256)
# A query without blocks gives NaN, and a block that is given twice counts twice.
DISTRIBUTIONS = tuple(d for d in OP.distributions if d not in ("repeated", "empty_rows"))


def topk_attention(
    package: Package,
    attend: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None,
    sm_scale: float,
    block_size: int,
) -> Tensor:
    """The op through a function with the signature of XunhaoLai's, which FSA's has, too."""
    refuse_float32(q, package.name)
    if q.shape[3] != v.shape[3] or block_size not in BLOCKS:
        raise Unsupported(
            f"{package.name} needs D = Dv and blocks of {', '.join(map(str, BLOCKS))} keys"
        )
    b, t = q.shape[:2]
    packed = every(t, b, q.device) if cu_seqlens is None else cu_seqlens
    chosen = blocks_first(block_indices).flatten(0, 1).transpose(0, 1).contiguous()
    flat = (x.flatten(0, 1).contiguous() for x in (q, k, v))
    names = zip(TAKES, (*flat, chosen, block_size, packed, sm_scale), strict=True)
    return attend(**dict(names)).view_as(q)


@implementation(
    op="selection_blocks",
    name="nsa_triton",
    role="baseline",
    devices=("cuda",),
    distributions=DISTRIBUTIONS,
    package=NSA_TRITON,
    compiled_by="triton",
)
def nsa_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> Tensor:
    """XunhaoLai's `topk_sparse_attention` for packed sequences."""
    attend = function(NSA_TRITON, TOPK, *TAKES)
    return topk_attention(
        NSA_TRITON, attend, q, k, v, block_indices, cu_seqlens, sm_scale, block_size
    )
