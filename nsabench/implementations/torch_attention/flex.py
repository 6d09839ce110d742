"""FlexAttention as all baselines use it: compiled once, and absent from old versions of torch."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsabench import Unsupported
from nsabench.implementations.torch_attention.backends import accepts

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
    make = flex()[1].BlockMask.from_kv_blocks
    if not accepts(make, "seq_lengths"):
        raise Unsupported(f"torch {torch.__version__}: a BlockMask is not told how long it is")
    halves = not backward and accepts(make, "compute_q_blocks")
    return make(
        *_counted(partial),
        *(_counted(full) if full is not None else ()),
        BLOCK_SIZE=TILE,
        mask_mod=mask_mod,
        seq_lengths=seq_lengths,
        **({"compute_q_blocks": False} if halves else {}),
    )


def band_mask(lo: Tensor, hi: Tensor, keys: int, *, backward: bool) -> Any:
    """The BlockMask of queries that see the keys lo up to hi, int32 [T]; neither ever falls.

    `create_block_mask` would write T x keys elements.
    """

    def seen(b: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return (ki >= lo[qi]) & (ki < hi[qi])

    return block_mask(*band_tiles(lo, hi, keys), seen, (lo.numel(), keys), backward=backward)


def band_tiles(lo: Tensor, hi: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """bool [1,1,tiles of queries,tiles of keys]: in which some but not all is seen, and in which
    all is. The bounds of a tile's first and last query say it."""
    ragged = (0, -(-lo.numel() // TILE) - lo.numel() // TILE)
    # Beyond the last query, `keys`: what a tile that is cut off may see, and makes it never full.
    lo_last, hi_last = (pad(x[TILE - 1 :: TILE], ragged, value=keys).unsqueeze(1) for x in (lo, hi))
    key = torch.arange(0, keys, TILE, dtype=torch.int32, device=lo.device)
    some = (key < hi_last) & (key + TILE > lo[::TILE].unsqueeze(1))
    full = (key >= lo_last) & (key + TILE <= hi[::TILE].unsqueeze(1))
    return (some ^ full)[None, None], full[None, None]


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
