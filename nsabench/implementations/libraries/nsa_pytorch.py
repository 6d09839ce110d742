"""native-sparse-attention-pytorch: lucidrains' Triton kernels of its fine attention.

A query attends to its own block, causally, and to whole blocks that are chosen before it, so it is
the op where every query chooses its own block. It computes in float16, whatever the inputs, and
scales by 1/sqrt(D). Its layer has projections, rotary positions and learned compression in it, and
is no op here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.implementations.libraries._calls import blocks_first, function, refuse_float32
from nsabench.ops.selection_blocks import OP
from nsabench.packages.catalogue import NSA_PYTORCH

ATTEND = "native_sparse_attention_pytorch.triton_native_sparse_attention:native_sparse_attend"
TENSORS = ("fq", "fk", "fv", "block_size", "selected_block_indices", "fmask")
TAKES = (*TENSORS, "include_block_causal")
GROUPS = (1, 2, 4, 8, 16)
MOST_WIDTH = 128
# A block that is given twice counts twice, and there is no query that chose nothing, or not its own
# block; float16 has no room for such logits.
DISTRIBUTIONS = tuple(
    d for d in OP.distributions if d not in ("repeated", "empty_rows", "packed", "large_logits")
)


@implementation(
    op="selection_blocks",
    name="nsa_pytorch",
    role="baseline",
    devices=("cuda",),
    distributions=DISTRIBUTIONS,
    package=NSA_PYTORCH,
    compiled_by="triton",
)
def nsa_pytorch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> Tensor:
    """`native_sparse_attend`, the blocks before a query's own as given, and its own by itself."""
    attend = function(NSA_PYTORCH, ATTEND, *TAKES)
    refuse_float32(q, NSA_PYTORCH.name)
    group, width = q.shape[2] // k.shape[2], q.shape[3]
    if cu_seqlens is not None:
        raise Unsupported(f"{NSA_PYTORCH.name} takes no packed sequences")
    if width != v.shape[3] or width > MOST_WIDTH or block_size % 16 or group not in GROUPS:
        raise Unsupported(
            f"{NSA_PYTORCH.name} needs D = Dv of {MOST_WIDTH} at most, blocks of 16, 32, … keys, "
            "and groups of 1, 2, 4, 8 or 16 heads"
        )
    if abs(sm_scale - width**-0.5) > 1e-6 * sm_scale:
        raise Unsupported(f"{NSA_PYTORCH.name} scales by 1/sqrt(D)")
    position = torch.arange(q.shape[1], device=q.device)
    own = (position // block_size).view(-1, 1, 1)
    chosen = blocks_first(block_indices.where(block_indices < own, -1)).transpose(1, 2).contiguous()
    by_head = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    given = (*by_head, block_size, chosen.clamp(min=0).long(), chosen >= 0)
    out: Tensor = attend(
        **dict(zip(TENSORS, given, strict=True)),
        include_block_causal=True,
    )
    return out.transpose(1, 2)
