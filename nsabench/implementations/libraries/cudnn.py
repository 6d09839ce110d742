"""The experimental selection attention of nvidia-cudnn-frontend, forward only."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import Packing
from nsabench.implementations.libraries import _calls
from nsabench.registry import Package

CUDNN = Package("nvidia-cudnn-frontend", "Apache-2.0 AND MIT", "'nvidia-cudnn-frontend[cutedsl]'")
SELECTION = "cudnn.native_sparse_attention.selection:selection_attention_wrapper"
TAKES = (
    *("q_tensor", "k_tensor", "v_tensor", "block_indices_tensor", "block_counts_tensor"),
    *("cum_seqlen_q_tensor", "cum_seqlen_k_tensor", "block_size", "scale_softmax"),
    *("max_s_q", "max_s_k", "is_causal"),
)


@_calls.selected_blocks("cudnn_nsa", CUDNN, directions=("forward",))
def cudnn_nsa(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, cu: Packing = None, **options: Any
) -> Tensor:
    attend = _calls.find_function(CUDNN, SELECTION, *TAKES)
    _calls.refuse_float32(q, "cuDNN")
    b, t = q.shape[:2]
    packed = _torch.get_cu_seqlens(q, cu)
    chosen = _calls.blocks_first(blocks).flatten(0, 1)
    counts = (chosen >= 0).sum(-1, dtype=chosen.dtype)
    tensors = (*_calls.flatten_batch(q, k, v), chosen.clamp_(min=0), counts)
    given = (*tensors, packed, packed, options["block_size"], options["sm_scale"], t, t, True)
    try:
        answer = attend(**dict(zip(TAKES, given, strict=True)))
    except (NotImplementedError, ValueError) as error:  # checks of cuDNN, before a kernel runs
        raise Unsupported(f"cuDNN's selection attention refuses these inputs: {error}") from error
    out = answer["o_tensor"]
    return out.view(b, t, q.shape[2], v.shape[3])
