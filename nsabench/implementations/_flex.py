"""FlexAttention as all baselines use it: compiled once, and absent from old versions of torch."""

from __future__ import annotations

import inspect
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported

TILE = 128


@cache
def flex() -> tuple[Any, ModuleType]:
    """`flex_attention`, compiled, and the module it is in. `Unsupported` before torch 2.5."""
    try:
        from torch.nn.attention import flex_attention as module
    except ImportError as error:
        raise Unsupported(f"torch {torch.__version__} has no flex_attention") from error
    # fullgraph: what cannot be compiled fails, and is not measured uncompiled under this name.
    return torch.compile(module.flex_attention, dynamic=False, fullgraph=True), module


def block_mask(
    partial: Tensor,
    full: Tensor | None,
    mask_mod: Any,
    seq_lengths: tuple[int, int],
    *,
    backward: bool,
) -> Any:
    """The BlockMask of tiles of `TILE` queries by as many keys, made without a look at the device.

    partial, full: bool [B,H,tiles of queries,tiles of keys]: in which `mask_mod` decides, and in
    which all is seen. backward: whether a gradient will be asked; a forward reads only half of it.
    """
    tiles = flex()[1].BlockMask
    only_forward = {"compute_q_blocks": False}
    takes = set(only_forward) <= set(inspect.signature(tiles.from_kv_blocks).parameters)
    return tiles.from_kv_blocks(
        *_counted(partial),
        *(_counted(full) if full is not None else ()),
        BLOCK_SIZE=TILE,
        mask_mod=mask_mod,
        seq_lengths=seq_lengths,
        **(only_forward if takes and not backward else {}),
    )


def _counted(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """How many tiles of keys a tile of queries has, and the tiles, those first; int32."""
    order = tiles.to(torch.int32).argsort(dim=-1, descending=True, stable=True)
    return tiles.sum(-1, dtype=torch.int32), order.to(torch.int32)


def wants_grad(*tensors: Tensor) -> bool:
    """Whether a backward will follow a call with these."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def check_head_dims(q: Tensor, v: Tensor) -> None:
    """Raises `Unsupported` for head dims that FlexAttention does not take."""
    if any(width & (width - 1) for width in (q.shape[-1], v.shape[-1])):
        raise Unsupported("flex_attention needs head dims that are powers of two")
