"""Argument checks for attention under a band (``geometry.Band``)."""

from __future__ import annotations

import torch

from ..launch.checks import check_qkv, kind, require


def check_band(op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise TypeError or ValueError unless the tensors are q [B,T,HQ,D] and k, v [B,N,H,D|Dv]."""
    check_qkv(op, q, k, v)
    fits = (
        q.dim() == k.dim() == v.dim() == 4
        and q.shape[0] == k.shape[0] == v.shape[0]
        and k.shape[1:3] == v.shape[1:3]
        and k.shape[2] >= 1
        and q.shape[2] % k.shape[2] == 0
    )
    require(
        fits,
        f"{op}: expected q [B,T,HQ,D], k [B,N,H,D], v [B,N,H,Dv] with HQ a multiple of H; "
        f"got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}",
    )


def check_cu(op: str, name: str, cu: torch.Tensor, q: torch.Tensor) -> None:
    """Raise TypeError or ValueError unless ``cu`` has the form of a cu_seqlens, and q has B = 1."""
    if not isinstance(cu, torch.Tensor) or cu.dtype != torch.int32:
        raise TypeError(f"{op}: {name} must be an int32 tensor; got {kind(cu)}")
    require(
        cu.dim() == 1 and cu.shape[0] >= 2 and cu.device == q.device and q.shape[0] == 1,
        f"{op}: {name} must be [sequences + 1] on q's device, and q must have B = 1",
    )
