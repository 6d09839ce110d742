"""Launches of attention under a band (`forward.py`): checks, tiles, tables of packed sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..launch import checks as check
from ..launch.shares import add_shares, room_for_shares
from ..selection.config import device_limits
from .backward import band_dkv_kernel, band_dq_kernel
from .forward import band_forward_kernel
from .tables import band_tables_kernel


@dataclass(frozen=True, slots=True)
class Band:
    """Which keys a query sees: ``block`` tokens a key, one every ``stride`` tokens, the last
    ``window`` of them (0: all). ``keys``, ``queries``: of packed ``sequences``, the tables
    instead: int32 [2,T], from and before which key a query sees, int32 [2,N], a key's queries."""

    block: int
    stride: int
    window: int
    keys: torch.Tensor | None = None
    queries: torch.Tensor | None = None
    sequences: int = 1

    def constants(self) -> dict[str, int | bool]:
        return {
            "BLOCK": self.block,
            "STRIDE": self.stride,
            "WINDOWED": self.window > 0,
            "PACKED": self.keys is not None,
        }


@dataclass(frozen=True, slots=True)
class Tiles:
    """Queries and keys a tile, and how the program is launched."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@check.on_its_device
def packed_band(
    q: torch.Tensor,
    keys: int,
    cu_seqlens: torch.Tensor,
    cu_keys: torch.Tensor,
    block: int,
    stride: int,
    window: int,
) -> Band:
    """The band of sequences packed in q [1,T,HQ,D] and in ``keys`` keys, made on the device.

    A query behind the last sequence sees no key; ``cu_keys`` is clamped to [0, ``keys``].
    """
    total = q.shape[1]
    of_query = torch.empty((2, total), dtype=torch.int32, device=q.device)
    of_key = torch.empty((2, keys), dtype=torch.int32, device=q.device)
    sequences = cu_seqlens.shape[0] - 1
    tile = 128
    band_tables_kernel[(max(1, check.cdiv(max(total, keys), tile)),)](
        cu_seqlens.contiguous(),
        cu_keys.contiguous(),
        of_query[0],
        of_query[1],
        of_key[0],
        of_key[1],
        total,
        keys,
        sequences,
        window,
        BLOCK=block,
        STRIDE=stride,
        WINDOWED=window > 0,
        STEPS=sequences.bit_length(),
        TILE=tile,
        num_warps=4,
    )
    return Band(block, stride, window, of_query, of_key, sequences)


def check_band(op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> None:
    """Raises TypeError or ValueError for tensors that are not q [B,T,HQ,D], k, v [B,N,H,D|Dv]."""
    check.check_qkv(op, q, k, v)
    fits = (
        q.dim() == k.dim() == v.dim() == 4
        and q.shape[0] == k.shape[0] == v.shape[0]
        and k.shape[1:3] == v.shape[1:3]
        and k.shape[2] >= 1
        and q.shape[2] % k.shape[2] == 0
    )
    check.require(
        fits,
        f"{op}: expected q [B,T,HQ,D], k [B,N,H,D], v [B,N,H,Dv] with HQ a multiple of H; "
        f"got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}",
    )
    check.require(scale > 0, f"{op}: sm_scale must be positive; got {scale}")


def check_cu(op: str, name: str, cu: torch.Tensor, q: torch.Tensor) -> None:
    """Raises TypeError or ValueError for a cu_seqlens that does not fit packed sequences."""
    if cu.dtype != torch.int32:
        raise TypeError(f"{op}: {name} must be int32; got {cu.dtype}")
    check.require(
        cu.dim() == 1 and cu.shape[0] >= 2 and cu.device == q.device and q.shape[0] == 1,
        f"{op}: {name} must be [sequences + 1] on q's device, and the sequences packed in B = 1",
    )


def _fit(tiles: Tiles, q: torch.Tensor, dv: int, stage_queries: bool = False) -> Tiles:
    """``tiles`` made smaller until the device has the shared memory.

    What a loop walks over is staged (keys, or with ``stage_queries`` queries), the other kept.
    """
    m, n, warps, stages = tiles.block_m, tiles.block_n, tiles.num_warps, tiles.num_stages
    if q.element_size() == 4:
        # IEEE fp32 products run on the plain cores with whole operands in registers.
        m, n, warps, stages = 32, 32, 4, 1
    row = (check.next_power_of_2(q.shape[3]) + check.next_power_of_2(dv)) * q.element_size()
    limit = device_limits(q.device).shared_bytes
    while row * (m * stages + n if stage_queries else n * stages + m) > limit and m * n > 256:
        if stages > 2:
            stages -= 1
        elif m > n:
            m //= 2
        else:
            n //= 2
    return Tiles(m, n, warps, stages)


def forward_tiles(q: torch.Tensor, v: torch.Tensor, band: Band) -> Tiles:
    """The tiles of the forward pass (docs/lab/bands.md)."""
    widest = max(q.shape[3], v.shape[3])
    programs = check.cdiv(q.shape[1], 64) * q.shape[2] * q.shape[0]
    few = programs <= 2 * device_limits(q.device).processors
    if band.window:
        tiles = Tiles(64, 64, 4, 3 if few or widest <= 32 else 2)
    elif widest <= 32:
        tiles = Tiles(64, 64, 4, 2)
    elif widest <= 64 and not few and band.keys is None:
        tiles = Tiles(128, 64, 8, 3)
    else:
        tiles = Tiles(64, 32, 4, 2)
    return _fit(tiles, q, v.shape[3])


def dq_tiles(q: torch.Tensor, v: torch.Tensor) -> Tiles:
    """The tiles of dQ."""
    stages = 3 if max(q.shape[3], v.shape[3]) <= 64 else 2
    return _fit(Tiles(64, 32, 4, stages), q, v.shape[3])


def dkv_tiles(q: torch.Tensor, v: torch.Tensor, band: Band) -> Tiles:
    """The tiles of dK and dV."""
    if max(q.shape[3], v.shape[3]) > 64:
        tiles = Tiles(32, 64, 4, 3)
    else:
        tiles = Tiles(64, 64, 4, 1) if band.window else Tiles(128, 64, 4, 2)
    return _fit(tiles, q, v.shape[3], stage_queries=True)


@check.on_its_device
def band_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    band: Band,
    sm_scale: float,
    tiles: Tiles | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B,T,HQ,Dv] and lse [B,HQ,T] float32 (natural; -inf and out = 0 where no key is seen)."""
    b, t, hq, _ = q.shape
    n, h, dv = v.shape[1:]
    out = torch.empty((b, t, hq, dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((b, hq, t), dtype=torch.float32, device=q.device)
    if lse.numel() == 0:
        return out, lse
    tiles = tiles or forward_tiles(q, v, band)
    band_forward_kernel[(check.cdiv(t, tiles.block_m), hq, b)](
        q,
        k,
        v,
        out,
        lse,
        *_tables(band.keys, lse),
        *q.stride(),
        *k.stride(),
        *v.stride(),
        t,
        n,
        hq,
        hq // h,
        band.window,
        sm_scale * check.LOG2_E,
        BLOCK_M=tiles.block_m,
        BLOCK_N=tiles.block_n,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        PRECISION="ieee",
        **check.head_dims(q.shape[3], dv),
        **band.constants(),
    )
    return out, lse


@check.on_its_device
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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk, dv of ``band_forward``; ``grad_lse`` is that of lse [B,HQ,T], or None."""
    b, t, hq, d = q.shape
    n, h, dv = v.shape[1:]
    group = hq // h
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    if min(q.numel(), k.numel()) == 0:
        return dq.zero_(), k.new_zeros(k.shape), v.new_zeros(v.shape)
    rest = torch.empty_like(lse)
    dlse = rest if grad_lse is None else grad_lse
    for_dq, for_dkv = tiles or (dq_tiles(q, v), dkv_tiles(q, v, band))
    shapes = {**check.head_dims(d, dv), **band.constants()}
    strides = (*q.stride(), *k.stride(), *v.stride(), *grad.stride())
    scale = sm_scale * check.LOG2_E
    band_dq_kernel[(check.cdiv(t, for_dq.block_m), hq, b)](
        q,
        k,
        v,
        grad,
        out,
        lse,
        dlse,
        rest,
        dq,
        *_tables(band.keys, lse),
        *strides,
        dlse.stride(0),
        dlse.stride(2),
        dlse.stride(1),
        t,
        n,
        hq,
        group,
        band.window,
        scale,
        HAS_DLSE=grad_lse is not None,
        BLOCK_M=for_dq.block_m,
        BLOCK_N=for_dq.block_n,
        num_warps=for_dq.num_warps,
        num_stages=for_dq.num_stages,
        PRECISION="ieee",
        **shapes,
    )
    key_tiles = check.cdiv(n, for_dkv.block_n)
    longest = check.cdiv(t, band.sequences)
    if band.window:
        longest = min(longest, band.window + for_dkv.block_n)
    shares = _shares(band, key_tiles * h * b, group * longest, device_limits(q.device).processors)
    dk = torch.empty((b, n, h, d), dtype=q.dtype, device=q.device)
    dv_ = torch.empty((b, n, h, dv), dtype=q.dtype, device=q.device)
    dk_parts, dv_parts, share_stride = room_for_shares(dk, dv_, shares)
    band_dkv_kernel[(key_tiles, h, b * shares)](
        q,
        k,
        v,
        grad,
        lse,
        rest,
        dk_parts,
        dv_parts,
        *_tables(band.keys, lse),
        *_tables(band.queries, lse),
        *strides,
        t,
        n,
        hq,
        group,
        b,
        shares,
        share_stride,
        band.window,
        scale,
        BLOCK_M=for_dkv.block_m,
        BLOCK_N=for_dkv.block_n,
        num_warps=for_dkv.num_warps,
        num_stages=for_dkv.num_stages,
        PRECISION="ieee",
        **shapes,
    )
    if shares > 1:
        add_shares(dk_parts, dk, dv_)
    return dq, dk, dv_


class _Attention(torch.autograd.Function):
    """The launches above, differentiable in eager mode."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        band: Band,
        sm_scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = band_forward(q, k, v, band, sm_scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.band, ctx.sm_scale = band, sm_scale
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor | None, grad_lse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: the result would pass for a constant
            raise RuntimeError(
                "sliding_window and compressed_attention have no second derivative; "
                "take their gradient without create_graph"
            )
        *saved, out, lse = ctx.saved_tensors
        if grad is None:
            grad = torch.zeros_like(out)
        found = band_backward(*saved, out, lse, grad, grad_lse, ctx.band, ctx.sm_scale)
        return (*found, None, None)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, band: Band, sm_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``band_forward``, differentiable where a gradient is wanted."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        out, lse = _Attention.apply(q, k, v, band, sm_scale)
        return out, lse
    return band_forward(q, k, v, band, sm_scale)


def traced(q: torch.Tensor) -> bool:
    """Whether a call must be an operator: under torch.compile, or on tensors without values.

    Otherwise the launcher is called directly: the dispatcher costs more than the launch.
    """
    return torch.compiler.is_dynamo_compiling() or type(q) not in (torch.Tensor, torch.nn.Parameter)


def _shares(band: Band, programs: int, rows: int, processors: int) -> int:
    """Into how many shares the walk of a key tile, over about ``rows`` queries at most, is cut.

    In a window all tiles walk about equally far, and two programs a processor do (four of packed
    sequences, which differ); a share is a step or more. Without a window the first tile walks over
    all queries and the last over hardly any: small shares even that out, but below 256 queries
    they cost more to add up than they save.
    """
    if band.window:
        wanted, least = (2 if band.keys is None else 4) * processors // programs, 64
    else:
        wanted, least = min(32, 16 * processors // programs), 256
    return max(1, min(wanted, rows // least))


def _tables(
    of: torch.Tensor | None, placeholder: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The two rows of a table of the band; where there is none, what no kernel reads."""
    return (placeholder, placeholder) if of is None else (of[0], of[1])
