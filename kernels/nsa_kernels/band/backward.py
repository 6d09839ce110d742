"""The backward launches of attention under a band (``geometry.Band``)."""

from __future__ import annotations

import torch

from ..launch.device import device_limits, on_its_device
from ..launch.gated import Gated
from ..launch.shares import add_shares, clear, room_for_shares
from ..launch.sizes import LOG2_E, batches, cdiv, head_dims, strides
from . import hopper_backward
from .config import Tiles, dkv_tiles, dq_tiles, walk_shares
from .geometry import Band, tables_of
from .kernels.backward import band_dkv_kernel, band_dq_kernel


@on_its_device
def band_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    grad: torch.Tensor,
    grad_lse: torch.Tensor | None,
    band: Band,
    sm_scale: float,
    tiles: tuple[Tiles, Tiles] | None = None,
    gated: Gated | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return dq, dk and dv of ``band_forward``. ``grad`` and ``grad_lse`` [B,HQ,T] are contiguous;
    ``grad_lse`` may be None. With ``gated``, ``grad`` is the gradient of the gated sum, ``out`` is
    not read, and dq is added to ``gated.dq`` if there is one."""
    b, t, hq, d = q.shape
    n, h, dv = v.shape[1:]
    group = hq // h
    before = None if gated is None else gated.dq
    dq = before
    if dq is None:
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    dk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    dv_ = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if min(q.numel(), k.numel()) == 0:
        for x in (dk, dv_) if dq is before else (dq, dk, dv_):
            clear(x)
        return dq, dk, dv_
    fits = tiles is None and hopper_backward.fits(q, k, v, grad, band)
    hopper_gated = gated if fits else None
    if gated is None:
        rest, gate = torch.empty(lse.shape, dtype=torch.float32, device=lse.device), lse
    else:
        rest, gate = gated.rest, gated.gate
    dlse = rest if grad_lse is None else grad_lse
    for_dq, for_dkv = tiles or (dq_tiles(q, v), dkv_tiles(q, v, band))
    shapes = {**head_dims(d, dv), **band.constants()}
    qkv_strides = strides(q, k, v)
    scale = sm_scale * LOG2_E
    if hopper_gated is not None and hopper_backward.in_pairs(q, k):
        hopper_backward.launch_dq(q, k, v, lse, grad, hopper_gated, dq, band, sm_scale)
    else:
        for some in batches(b, 1):
            band_dq_kernel[(cdiv(t, for_dq.block_m), hq, some.stop - some.start)](
                *(x[some] for x in (q, k, v, grad, out, lse, dlse, rest, gate, dq)),
                *tables_of(band.keys, lse),
                *(*qkv_strides, t, n, hq, group, band.window, scale),
                HAS_DLSE=grad_lse is not None,
                GATED=gated is not None,
                ADDED=before is not None,
                BLOCK_M=for_dq.block_m,
                BLOCK_N=for_dq.block_n,
                num_warps=for_dq.num_warps,
                num_stages=for_dq.num_stages,
                **shapes,
            )
    if hopper_gated is not None and hopper_backward.fills_device(q, k, band):
        hopper_backward.launch_dkv(q, k, v, lse, grad, hopper_gated, dk, dv_, band, sm_scale)
        return dq, dk, dv_
    key_tiles = cdiv(n, for_dkv.block_n)
    longest = cdiv(t, band.sequences)
    if band.window:
        longest = min(longest, band.window + for_dkv.block_n)
    shares = walk_shares(
        band, key_tiles * h * b, group * longest, device_limits(q.device).processors
    )
    dk_parts, dv_parts, share_stride = room_for_shares(dk, dv_, shares)
    # There are several launches only if the batch is so large that ``shares`` is 1.
    for some in batches(b, shares):
        here = some.stop - some.start
        band_dkv_kernel[(key_tiles, h, here * shares)](
            *(x[some] for x in (q, k, v, grad, lse, rest, gate, dk_parts, dv_parts)),
            *(*tables_of(band.keys, lse), *tables_of(band.queries, lse)),
            *qkv_strides,
            *(t, n, hq, group, here, shares, share_stride, band.window, scale),
            BLOCK_M=for_dkv.block_m,
            BLOCK_N=for_dkv.block_n,
            num_warps=for_dkv.num_warps,
            num_stages=for_dkv.num_stages,
            GATED=gated is not None,
            **shapes,
        )
    if shares > 1:
        add_shares(dk_parts, dk, dv_)
    return dq, dk, dv_
