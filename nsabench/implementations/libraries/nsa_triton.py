"""XunhaoLai's native-sparse-attention-triton and Flash-Sparse-Attention (FSA), called alike."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import Packing
from nsabench.implementations.libraries import _calls
from nsabench.implementations.libraries._catalogue import FSA, NSA_TRITON
from nsabench.registry.package import Package

TOPK = "native_sparse_attention.ops.triton.topk_sparse_attention:topk_sparse_attention"
FSA_TOPK = "fsa.ops.FSA_topk_sparse_attention:FSA_topk_sparse_attention"
TAKES = ("q", "k", "v", "topk_idx", "block_size", "cu_seqlens", "softmax_scale")
BLOCKS = (32, 64, 128, 256)


def _attend(
    package: Package,
    where: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Tensor,
    cu: Packing = None,
    **options: Any,
) -> Tensor:
    attend = _calls.find_function(package, where, *TAKES)
    size = options["block_size"]
    _calls.refuse_float32(q, package.name)
    if q.shape[3] != v.shape[3] or size not in BLOCKS:
        raise Unsupported(
            f"{package.name} needs D = Dv and blocks of {', '.join(map(str, BLOCKS))} keys"
        )
    chosen = _calls.blocks_first(blocks).flatten(0, 1).transpose(0, 1).contiguous()
    given = (
        *_calls.flatten_batch(q, k, v),
        chosen,
        size,
        _torch.get_cu_seqlens(q, cu),
        options["sm_scale"],
    )
    out = attend(**dict(zip(TAKES, given, strict=True)))
    return out.view_as(q)


@_calls.selected_blocks("nsa_triton", NSA_TRITON, compiled_by="triton")
def nsa_triton(*tensors: Tensor, **options: Any) -> Tensor:
    """XunhaoLai's `topk_sparse_attention` for packed sequences."""
    return _attend(NSA_TRITON, TOPK, *tensors, **options)


@_calls.selected_blocks("fsa", FSA, compiled_by="triton")
def fsa(*tensors: Tensor, **options: Any) -> Tensor:
    """FSA's `FSA_topk_sparse_attention`, one head after another."""
    return _attend(FSA, FSA_TOPK, *tensors, **options)
