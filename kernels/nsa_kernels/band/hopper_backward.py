"""Backward launches on Hopper of attention under a band (``geometry.Band``) in a gated sum."""

from __future__ import annotations

import torch

from ..launch.descriptors import describe_tokens, in_rows
from ..launch.device import device_limits
from ..launch.gated import Gated
from ..launch.shares import add_shares, room_for_shares
from ..launch.sizes import LOG2_E, cdiv
from . import hopper
from .config import walk_shares
from .geometry import Band
from .hopper import GROUPS, REGISTERS, ROWS

SLOTS = 4
"""How many tiles are in shared memory at once: for dq, of 64 keys; for dk and dv, of 64 queries."""
TILE = 64


def fits(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, band: Band) -> bool:
    """Return whether the kernels for Hopper take these tensors. The kernel of dq also needs
    ``in_pairs``, that of dk and dv ``fills_device``. ``grad`` [B,T,HQ,D] is the sum's gradient."""
    return grad.dtype == q.dtype and in_rows(grad) and hopper.fits(q, k, v, band)


def fills_device(q: torch.Tensor, k: torch.Tensor, band: Band) -> bool:
    """Return whether one batch entry, which has its own launch, gives every multiprocessor a
    program for dk and dv."""
    walks, shares = _walks(q, k, band)
    return walks * shares >= device_limits(q.device).processors


def _walks(q: torch.Tensor, k: torch.Tensor, band: Band) -> tuple[int, int]:
    """Return the number of key tiles of a batch entry, and how many programs share each tile."""
    (t, hq), (n, h) = q.shape[1:3], k.shape[1:3]
    keys = ROWS * GROUPS
    walks = cdiv(n, keys) * h
    longest = min(t, band.window + keys) if band.window else t
    processors = device_limits(q.device).processors
    return walks, walk_shares(band, walks, hq // h * longest, processors)


def in_pairs(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Return whether query heads come in pairs that read the same keys."""
    return q.shape[2] // k.shape[2] % GROUPS == 0


def launch_dq(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lse: torch.Tensor,
    grad: torch.Tensor,
    gated: Gated,
    dq: torch.Tensor,
    band: Band,
    sm_scale: float,
) -> None:
    """Fill dq [B,T,HQ,D], contiguous, or add to it if it is ``gated.dq``. Each batch entry has its
    own launch."""
    from .kernels.hopper_dq import band_hopper_dq_kernel  # fails in some versions of Triton

    t, hq, d = q.shape[1:]
    n, h = k.shape[1:3]
    works = cdiv(t, ROWS) * (hq // GROUPS)
    for i in range(q.shape[0]):
        band_hopper_dq_kernel[(min(works, device_limits(q.device).processors),)](
            *(
                describe_tokens(q[i], ROWS),
                describe_tokens(grad[i], ROWS),
                describe_tokens(k[i], TILE),
                describe_tokens(v[i], TILE),
            ),
            *(describe_tokens(dq[i], ROWS), lse[i], gated.rest[i], gated.gate[i]),
            *(t, n, hq, hq // h, band.window, works, sm_scale * LOG2_E),
            D=d,
            BLOCK_N=TILE,
            SLOTS=SLOTS,
            REGISTERS=REGISTERS,
            ADDED=gated.dq is not None,
            **band.constants_of_one(),
            num_warps=4,
        )


def launch_dkv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lse: torch.Tensor,
    grad: torch.Tensor,
    gated: Gated,
    dk: torch.Tensor,
    dv: torch.Tensor,
    band: Band,
    sm_scale: float,
) -> None:
    """Fill dk and dv [B,N,H,D], contiguous. Each batch entry has its own launch. If programs share
    key tiles, one more launch adds up their sums."""
    from .kernels.hopper_dkv import band_hopper_dkv_kernel

    b, t, hq, d = q.shape
    n, h = k.shape[1:3]
    walks, shares = _walks(q, k, band)
    dk_parts, dv_parts, share_stride = room_for_shares(dk, dv, shares)
    size = n * h * d
    for i in range(b):
        band_hopper_dkv_kernel[(walks * shares,)](
            *(
                describe_tokens(q[i], TILE),
                describe_tokens(grad[i], TILE),
                describe_tokens(k[i], ROWS),
                describe_tokens(v[i], ROWS),
            ),
            *(lse[i], gated.rest[i], gated.gate[i]),
            *(dk_parts.view(-1)[i * size :], dv_parts.view(-1)[i * size :]),
            *(t, n, h, hq // h, band.window, shares, share_stride, sm_scale * LOG2_E),
            D=d,
            SLOTS=SLOTS,
            REGISTERS=REGISTERS,
            **band.constants_of_one(),
            num_warps=4,
        )
    if shares > 1:
        add_shares(dk_parts, dk, dv)
