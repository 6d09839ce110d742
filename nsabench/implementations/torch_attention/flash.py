"""What the baselines share: FlashAttention, torch's varlen attention, FlexAttention, masks.

FlashAttention is called as torch bundles it, through the aten operator. Arguments that not every
version has are found in the signature.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsabench import Unsupported
from nsabench.implementations.torch_attention.flex import check_head_dims, flex

# Above this many elements a dense mask is no longer a serious way to do the work.
MAX_MASK_ELEMENTS = 1 << 31


def check_flash(q: Tensor, v: Tensor) -> None:
    """Raises `Unsupported` for what FlashAttention does not take."""
    if q.dtype == torch.float32:
        raise Unsupported("FlashAttention takes float16 and bfloat16 only")
    if q.shape[-1] != v.shape[-1] or q.shape[-1] % 8:
        raise Unsupported("FlashAttention needs D = Dv, a multiple of 8")


@cache
def _aten_takes_window() -> bool:
    schema = torch.ops.aten._flash_attention_forward.default._schema
    return "window_size_left" in {argument.name for argument in schema.arguments}


def aten_flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu: tuple[Tensor, Tensor] | None,
    longest: tuple[int, int],
    sm_scale: float,
    window: int = 0,
    *,
    causal: bool = True,
) -> Tensor:
    """FlashAttention as torch bundles it: [B,T,H,D] with `cu` None, else packed [total,H,D].

    window: keys a query sees, 0 for all. causal: aligned at the ends.
    """
    extra: dict[str, Any] = {}
    if window:
        if not _aten_takes_window():
            raise Unsupported(f"FlashAttention in torch {torch.__version__} takes no window")
        extra = {"window_size_left": window - 1, "window_size_right": 0}
    out: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, *(cu or (None, None)), *longest, 0.0, causal, False, scale=sm_scale, **extra
    )[0]
    return out


@cache
def varlen_attention() -> Any:
    """The public varlen attention. Raises `Unsupported` before torch 2.10."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        raise Unsupported(f"torch {torch.__version__} has no torch.nn.attention.varlen") from None
    return varlen_attn


def masked_sdpa(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, sm_scale: float) -> Tensor:
    """SDPA [B,T,HQ,D] under a mask [T,N]; K and V are copied for each head of a group, since the
    kernels that take a mask know no groups. A query that keeps no key gives 0."""
    group = q.shape[2] // k.shape[2]
    empty = ~keep.any(-1)
    out = scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2).repeat_interleave(group, 1),
        v.transpose(1, 2).repeat_interleave(group, 1),
        attn_mask=keep | empty.unsqueeze(-1),
        scale=sm_scale,
    )
    return out.transpose(1, 2).masked_fill(empty[:, None, None], 0)


def sequence_of(cu: Tensor, place: Tensor) -> Tensor:
    """Which of the packed sequences each `place`, int32, lies in."""
    return torch.searchsorted(cu[1:].contiguous(), place, right=True)


def refuse_mask(queries: int, keys: int) -> None:
    """Raises `Unsupported` when a mask of that size is beyond reason."""
    if queries * keys > MAX_MASK_ELEMENTS:
        raise Unsupported(f"a dense mask of {queries} x {keys} elements")


def flex_attend(q: Tensor, k: Tensor, v: Tensor, block_mask: Any, sm_scale: float) -> Tensor:
    """FlexAttention [B,T,HQ,D], groups as they are."""
    check_head_dims(q, v)
    out: Tensor = flex()[0](
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        block_mask=block_mask,
        scale=sm_scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)
