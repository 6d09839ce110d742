"""Flash-Sparse-Attention: block selection by loops over blocks of keys, forward, too.

It holds partial outputs in bfloat16, whatever the inputs, and a buffer of blocks times the queries
of the block that most chose. Heads and packed sequences follow one another.
"""

from __future__ import annotations

from torch import Tensor

from nsabench import implementation
from nsabench.implementations.libraries._calls import function
from nsabench.implementations.libraries.nsa_triton import DISTRIBUTIONS, TAKES, topk_attention
from nsabench.packages.catalogue import FSA

TOPK = "fsa.ops.FSA_topk_sparse_attention:FSA_topk_sparse_attention"


@implementation(
    op="selection_blocks",
    name="fsa",
    role="baseline",
    devices=("cuda",),
    distributions=DISTRIBUTIONS,
    package=FSA,
    compiled_by="triton",
)
def fsa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> Tensor:
    """FSA's `FSA_topk_sparse_attention`, a head after another."""
    attend = function(FSA, TOPK, *TAKES)
    return topk_attention(FSA, attend, q, k, v, block_indices, cu_seqlens, sm_scale, block_size)
