"""nvidia-cudnn-frontend: the experimental selection attention of its NSA namespace, forward alone.

Its kernels are written in CuTe DSL. Blocks of 16 to 128 keys, groups of up to 16 heads, sm_90 on.
"""

from __future__ import annotations

from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines.selection_varlen import every
from nsabench.implementations.libraries._calls import blocks_first, function, refuse_float32
from nsabench.ops.selection_blocks import OP
from nsabench.packages.catalogue import CUDNN

SELECTION = "cudnn.native_sparse_attention.selection:selection_attention_wrapper"
TENSORS = ("q_tensor", "k_tensor", "v_tensor", "block_indices_tensor", "block_counts_tensor")
TAKES = (
    *TENSORS,
    *("cum_seqlen_q_tensor", "cum_seqlen_k_tensor", "block_size", "scale_softmax"),
    *("max_s_q", "max_s_k", "is_causal"),
)
# A block that is given twice counts twice.
DISTRIBUTIONS = tuple(d for d in OP.distributions if d not in ("repeated", "empty_rows"))


@implementation(
    op="selection_blocks",
    name="cudnn_nsa",
    role="baseline",
    devices=("cuda",),
    distributions=DISTRIBUTIONS,
    directions=("forward",),
    package=CUDNN,
)
def cudnn_nsa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> Tensor:
    """`selection_attention_wrapper`, causal within the chosen blocks."""
    attend = function(CUDNN, SELECTION, *TAKES)
    refuse_float32(q, "cuDNN")
    b, t = q.shape[:2]
    packed = every(t, b, q.device) if cu_seqlens is None else cu_seqlens
    chosen = blocks_first(block_indices).flatten(0, 1)
    flat = [x.flatten(0, 1).contiguous() for x in (q, k, v)]
    counts = (chosen >= 0).sum(-1, dtype=chosen.dtype)
    try:
        answer = attend(
            **dict(zip(TENSORS, (*flat, chosen.clamp_(min=0), counts), strict=True)),
            cum_seqlen_q_tensor=packed,
            cum_seqlen_k_tensor=packed,
            block_size=block_size,
            scale_softmax=sm_scale,
            max_s_q=t,
            max_s_k=t,
            is_causal=True,
        )
    except (NotImplementedError, ValueError) as error:  # its own checks, before anything runs
        raise Unsupported(f"cuDNN's selection attention refuses it: {error}") from error
    out: Tensor = answer["o_tensor"]
    return out.view(b, t, q.shape[2], v.shape[3])
