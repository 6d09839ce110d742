"""Flash-Sparse-Attention: block selection by loops over blocks of keys, also forward.

It holds partial outputs in bfloat16, whatever the inputs, and a buffer of blocks times the queries
of the block that most chose. Heads and packed sequences follow one another.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nsabench.implementations.libraries._calls import chosen_blocks
from nsabench.implementations.libraries.nsa_triton import topk_attention
from nsabench.packages.catalogue import FSA

TOPK = "fsa.ops.FSA_topk_sparse_attention:FSA_topk_sparse_attention"


@chosen_blocks("fsa", FSA, compiled_by="triton")
def fsa(*tensors: Tensor, **options: Any) -> Tensor:
    """FSA's `FSA_topk_sparse_attention`, a head after another."""
    return topk_attention(FSA, TOPK, *tensors, **options)
