"""``sliding_window``: causal attention over the last keys (arXiv 2502.11089, section 3.3.3)."""

from __future__ import annotations

import torch

from ..launch.checks import check_whole, softmax_scale
from .attend import attend

OP = "sliding_window"


def sliding_window(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    *,
    window: int,
    sm_scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with query t to the keys max(0, t - window + 1) .. t of its sequence.

    Differentiable in q, k and v, through both results; the gradients are deterministic.

    Args:
        q: [B, T, HQ, D], float16, bfloat16 or float32, any strides.
        k: [B, T, H, D], same dtype; HQ is a multiple of H. v: [B, T, H, Dv].
        cu_seqlens: int32 [sequences + 1], if B = 1 and the sequences are packed along T. A query
            sees only keys of its own sequence. The values of cu_seqlens must not decrease.
        window: number of keys that a query sees, including its own; >= 1.
        sm_scale: positive factor on q.k; 1/sqrt(D) when None.

    Returns:
        out [B, T, HQ, Dv] in q's dtype; lse [B, T, HQ] float32, natural (strides of [B, HQ, T]).

    Raises:
        TypeError: dtypes are unsupported or mixed.
        ValueError: shapes do not fit together, head dims are outside 16..256, or window < 1.
    """
    check_whole(OP, "window", window, 1)
    scale = softmax_scale(OP, q, sm_scale)
    out, lse = attend(q, k, v, cu_seqlens, cu_seqlens, 1, 1, window, scale)
    return out, lse.transpose(1, 2)
