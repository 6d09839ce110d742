"""The forward launch of attention under a band (``geometry.Band``)."""

from __future__ import annotations

import torch

from ..launch.device import on_its_device
from ..launch.sizes import LOG2_E, batches, cdiv, head_dims, strides
from . import hopper
from .config import Tiles, forward_tiles, value_columns
from .geometry import Band, tables_of
from .kernels.forward import band_forward_kernel


@on_its_device
def band_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    band: Band,
    sm_scale: float,
    tiles: Tiles | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out [B,T,HQ,Dv] and natural lse [B,HQ,T] float32; 0 and -inf if no key is seen."""
    b, t, hq, _ = q.shape
    n, h, dv = v.shape[1:]
    out = torch.empty((b, t, hq, dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((b, hq, t), dtype=torch.float32, device=q.device)
    if lse.numel() == 0:
        return out, lse
    if tiles is None and hopper.fits(q, k, v, band):
        hopper.launch_forward(q, k, v, out, lse, band, sm_scale)
        return out, lse
    tiles = tiles or forward_tiles(q, v, band)
    columns = value_columns(q.shape[3], dv, q.element_size())
    for some in batches(b, 1):
        band_forward_kernel[(cdiv(t, tiles.block_m), hq, some.stop - some.start)](
            *(x[some] for x in (q, k, v, out, lse)),
            *tables_of(band.keys, lse),
            *strides(q, k, v),
            *(t, n, hq, hq // h, band.window, sm_scale * LOG2_E),
            BLOCK_M=tiles.block_m,
            BLOCK_N=tiles.block_n,
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
            **{**head_dims(q.shape[3], dv), "BLOCK_DV": columns},
            **band.constants(),
        )
    return out, lse
