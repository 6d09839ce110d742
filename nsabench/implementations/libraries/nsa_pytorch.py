"""Float16 Triton kernels from native-sparse-attention-pytorch, by lucidrains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations._register import Packing
from nsabench.implementations.libraries import _calls
from nsabench.implementations.libraries._catalogue import NSA_PYTORCH

ATTEND = "native_sparse_attention_pytorch.triton_native_sparse_attention:native_sparse_attend"
TAKES: tuple[str, ...] = ("fq", "fk", "fv", "block_size", "selected_block_indices", "fmask")
TAKES += ("include_block_causal",)
GROUPS = (1, 2, 4, 8, 16)
MOST_WIDTH = 128


# It always adds a query's own block, takes no packing, and overflows float16 with large logits.
@_calls.selected_blocks(
    "nsa_pytorch", NSA_PYTORCH, without=("packed", "large_logits"), compiled_by="triton"
)
def nsa_pytorch(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, cu: Packing = None, **options: Any
) -> Tensor:
    """`native_sparse_attend` with the given earlier blocks, plus the query's own block."""
    attend = _calls.find_function(NSA_PYTORCH, ATTEND, *TAKES)
    name, size, scale = NSA_PYTORCH.name, options["block_size"], options["sm_scale"]
    _calls.refuse_float32(q, name)
    group, width = q.shape[2] // k.shape[2], q.shape[3]
    if cu is not None:
        raise Unsupported(f"{name} takes no packed sequences")
    if width != v.shape[3] or width > MOST_WIDTH or size % 16 or group not in GROUPS:
        raise Unsupported(
            f"{name} needs D = Dv of {MOST_WIDTH} at most, blocks of 16, 32, … keys, "
            "and groups of 1, 2, 4, 8 or 16 heads"
        )
    if abs(scale - width**-0.5) > 1e-6 * scale:
        raise Unsupported(f"{name} scales by 1/sqrt(D)")
    own = (torch.arange(q.shape[1], device=q.device) // size).view(-1, 1, 1)
    chosen = _calls.blocks_first(blocks.where(blocks < own, -1)).transpose(1, 2).contiguous()
    by_head = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    given = (*by_head, size, chosen.clamp(min=0).long(), chosen >= 0, True)
    out = attend(**dict(zip(TAKES, given, strict=True)))
    return out.transpose(1, 2)
