"""The public functions of attention under a band (arXiv 2502.11089): ``compressed_attention``, the
compression branch of section 3.3.1, and ``sliding_window``, the window branch of section 3.3.3."""

from __future__ import annotations

import torch

from ..launch.checks import MAX_TOKENS, check_whole, softmax_scale
from .attend import attend

OP = "compressed_attention"
SLIDING = "sliding_window"


def compressed_attention(
    q: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    cu_keys: torch.Tensor | None = None,
    *,
    block: int = 32,
    stride: int = 16,
    sm_scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with query t to the compressed keys whose tokens are all at or before t.

    These are the first max(0, (t + 1 - block) // stride + 1) keys. Differentiable in q, k_cmp and
    v_cmp, through both results; the gradients are deterministic.

    Args:
        q: [B, T, HQ, D], float16, bfloat16 or float32, any strides.
        k_cmp: [B, Nc, H, D], same dtype; HQ is a multiple of H. v_cmp: [B, Nc, H, Dv]. Key i stands
            for the tokens i * stride to i * stride + block - 1.
        cu_seqlens, cu_keys: int32 [sequences + 1], both or neither. If they are given, B = 1, and
            sequences are packed along T and their compressed keys along Nc. Values of cu_keys
            outside [0, Nc] are clamped on the device.
        block, stride: tokens in a compressed key, and tokens from one key to the next.
        sm_scale: positive factor on q.k; 1/sqrt(D) when None.

    Returns:
        out [B, T, HQ, Dv] in q's dtype and lse [B, T, HQ] float32, natural (strides of
        [B, HQ, T]); a query that sees no key gives 0 and -inf.

    Raises:
        TypeError: dtypes are unsupported or mixed.
        ValueError: shapes do not fit together, or head dims are outside 16..256.
    """
    check_whole(OP, "block", block, 1, MAX_TOKENS)
    check_whole(OP, "stride", stride, 1, MAX_TOKENS)
    scale = softmax_scale(OP, q, sm_scale)
    out, lse = attend(q, k_cmp, v_cmp, cu_seqlens, cu_keys, block, stride, 0, scale)
    return out, lse.transpose(1, 2)


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
    check_whole(SLIDING, "window", window, 1)
    scale = softmax_scale(SLIDING, q, sm_scale)
    out, lse = attend(q, k, v, cu_seqlens, cu_seqlens, 1, 1, window, scale)
    return out, lse.transpose(1, 2)
