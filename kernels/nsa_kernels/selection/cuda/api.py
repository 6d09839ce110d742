"""``selection_rows`` and ``selection_ranges`` by launches of CUDA C++ kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...launch.checks import check_no_backward, check_qkv, check_scale, require
from ...launch.config import check_chunks
from ...launch.device import device_limits, on_its_device
from ...launch.shares import Shares
from ...launch.sizes import cdiv, scale_log2
from ..ranges.config import ranges_config
from ..ranges.spans import check_ranges
from ..rows.api import check_rows
from ..rows.config import rows_config
from .nvrtc import Unsupported, Variant, launch

HEAD_DIMS = (64, 128)
DTYPES = (torch.float16, torch.bfloat16)
SPANS = (32, 128)
"""The numbers of spans for which the range kernel is compiled. A row may have fewer spans."""
HEADS = 16
"""How many heads a thread block has: as many as a product on tensor cores has rows."""
LEAST_SHARE = 128
"""The fewest keys of a share of a row's spans. ``ranges.cu`` has the same number."""


class Tile(NamedTuple):
    """A thread block has ``warps`` warps, each with ``stages`` buffers for ``keys`` keys."""

    warps: int
    keys: int
    stages: int


def choose_tile(d: int, dv: int, spans: int, few: bool) -> Tile:
    """Return the tile for head dims. It fits in 99 KiB, the least shared memory of supported GPUs.

    A warp has three buffers if these are small, or if there are ``few`` thread blocks and few
    spans: a third keeps the memory busy. With two, three thread blocks fit on one SM of Hopper.
    """
    narrow = d + dv <= 128
    return Tile(4, 16, 3 if narrow or (few and spans <= SPANS[0]) else 2)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a call is launched: ``splits`` thread blocks share a row, with ``chunk`` keys each (0:
    computed on the device)."""

    tile: Tile
    splits: int
    chunk: int
    spans: int = 0

    def variant(self, kernel: str, q: torch.Tensor, v: torch.Tensor) -> Variant:
        bf16 = q.dtype == torch.bfloat16
        return Variant(kernel, q.shape[-1], v.shape[-1], bf16, *self.tile, self.spans)


def plan_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Plan:
    """Return how ``selection_rows`` is launched on these tensors."""
    n, h, d = q.shape
    dv = v.shape[-1]
    config = rows_config(n, h, k.shape[1], d, dv, q.dtype, q.device)
    few = _few(n * config.splits * cdiv(h, HEADS), q.device)
    return Plan(choose_tile(d, dv, 0, few), config.splits, config.chunk)


def plan_ranges(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    selected_len: int | None = None,
) -> Plan:
    """Return how ``selection_ranges`` is launched on these tensors.

    Raises:
        Unsupported: a row has more spans than the kernel is compiled for.
    """
    b, s, g, h, d = q.shape
    rows, n, dv = b * s * g, ranges.shape[-2], v.shape[-1]
    spans = next((size for size in SPANS if n <= size), None)
    if spans is None:
        raise Unsupported(
            f"selection_ranges: the CUDA C++ kernel takes up to {SPANS[-1]} spans per row, not {n}"
        )
    config = ranges_config(rows, h, n, k.shape[2], d, dv, selected_len, q.dtype, q.device)
    bound = k.shape[2] if selected_len is None else min(selected_len, k.shape[2])
    splits = max(1, min(config.splits, cdiv(bound, LEAST_SHARE)))
    few = _few(rows * splits * cdiv(h, HEADS), q.device)
    return Plan(choose_tile(d, dv, spans, few), splits, 0, spans)


def _few(blocks: int, device: torch.device) -> bool:
    return blocks <= 4 * device_limits(device).processors


def _check(op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    d, dv = q.shape[-1], v.shape[-1]
    if q.dtype not in DTYPES:
        raise Unsupported(f"{op}: the CUDA C++ kernel takes float16 and bfloat16, not {q.dtype}")
    if d not in HEAD_DIMS or dv not in HEAD_DIMS:
        raise Unsupported(
            f"{op}: the CUDA C++ kernel takes head dims 64 and 128, not D={d}, Dv={dv}"
        )
    for name, x in (("q", q), ("k", k), ("v", v)):
        steps = [
            step
            for step, size in zip(x.stride()[:-1], x.shape[:-1], strict=True)
            if size > 1 and step % 8
        ]
        if x.stride(-1) != 1 or x.data_ptr() % 16 or steps:
            raise Unsupported(
                f"{op}: the CUDA C++ kernel copies 16 bytes at a time; {name} with strides "
                f"{x.stride()} at {x.data_ptr() % 16} bytes past a multiple of 16 does not allow it"
            )


@on_its_device
def selection_rows(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    sm_scale: float | None = None,
    plan: Plan | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``nsa_kernels.selection_rows`` in CUDA C++.

    Args:
        q: [N, H, D], k: [N, L, D], v: [N, L, Dv]; float16 or bfloat16, D and Dv 64 or 128;
            last dimension contiguous; address and other strides multiples of 16 bytes.
        sm_scale: factor on q.k; 1/sqrt(D) when None.
        plan: how to launch; chosen from the shapes when None.

    Returns:
        out [N, H, Dv] in q's dtype and lse [N, H] float32 (natural log), both contiguous; an
        empty selection gives out = 0, lse = -inf.

    Raises:
        TypeError, ValueError: as ``nsa_kernels.selection_rows``, or the plan is for other shapes.
        Unsupported: this kernel does not take the inputs, or NVRTC is missing.
    """
    check_rows(q, k, v, sm_scale)
    _check("selection_rows", q, k, v)
    n, h, d = q.shape
    length, dv = v.shape[1], v.shape[2]
    if n == 0:
        return Shares.allocate(q, dv, 1).merged()
    if plan is None:
        plan = plan_rows(q, k, v)
    else:
        check_chunks("selection_rows", plan.splits, plan.chunk, plan.tile.keys, length)
    shares = Shares.allocate(q, dv, plan.splits)
    launch(
        plan.variant("rows", q, v),
        (n, plan.splits, cdiv(h, HEADS)),
        q.device,
        (
            *(q, k, v, *shares[:4]),
            *(*q.stride()[:2], *k.stride()[:2], *v.stride()[:2]),
            *(h, length, plan.chunk, scale_log2(sm_scale, d)),
        ),
    )
    return shares.merged()


@on_its_device
def selection_ranges(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    *,
    sm_scale: float | None = None,
    selected_len: int | None = None,
    plan: Plan | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``nsa_kernels.selection_ranges`` in CUDA C++.

    Args:
        q: [B, S, G, h, D], k: [B, G, S_kv, D], v: [B, G, S_kv, Dv]; float16 or bfloat16, D and Dv
            64 or 128; last dimension contiguous; address and other strides multiples of 16 bytes.
        ranges: int32 or int64 [B, S, G, n, 2] or [S, G, n, 2], as for the Triton kernel; n <= 128.
        sm_scale: factor on q.k; 1/sqrt(D) when None.
        selected_len: upper bound of the keys that a row selects. It is only a hint.
        plan: how to launch; chosen from the shapes when None.

    Returns:
        out [B, S, G, h, Dv] in q's dtype and lse [B, S, G, h] float32 (natural log), both
        contiguous; a row that selects nothing gives out = 0, lse = -inf.

    Raises:
        TypeError, ValueError: as ``nsa_kernels.selection_ranges``, or the plan is for fewer spans,
            or an input requires a gradient.
        Unsupported: this kernel does not take the inputs, or NVRTC is missing.
    """
    check_qkv("selection_ranges", q, k, v)
    check_scale("selection_ranges", sm_scale)
    check_no_backward("nsa_kernels.cuda.selection_ranges", q, k, v)
    ranges = check_ranges(q, k, v, ranges)
    _check("selection_ranges", q, k, v)
    b, s, g, h, d = q.shape
    s_kv, dv = v.shape[2], v.shape[3]
    if plan is None:
        plan = plan_ranges(q, k, v, ranges, selected_len)
    else:
        require(
            plan.splits >= 1 and plan.spans >= ranges.shape[3],
            f"selection_ranges: plan is for up to {plan.spans} spans per row, but ranges has "
            f"{ranges.shape[3]}; make it by plan_ranges from these tensors, or leave it out",
        )
    rows = b * s * g
    if rows == 0:
        return Shares.allocate(q, dv, 1).merged()
    shares = Shares.allocate(q, dv, plan.splits, table=True)
    launch(
        plan.variant("ranges", q, v),
        (rows, plan.splits, cdiv(h, HEADS)),
        q.device,
        (
            *(q, k, v, ranges, *shares[:4], shares.table_or_any),
            *(*q.stride()[:4], *k.stride()[:3], *v.stride()[:3], *ranges.stride()),
            *(int(ranges.dtype == torch.int64), s, g, h, s_kv, ranges.shape[3]),
            scale_log2(sm_scale, d),
        ),
    )
    return shares.merged()


def variants(op: str) -> Iterator[Variant]:
    """Yield every variant that the op launches. op: "selection_rows" or "selection_ranges"."""
    kernel = op.removeprefix("selection_")
    sizes = SPANS if kernel == "ranges" else (0,)
    for d, dv, bf16, spans in itertools.product(HEAD_DIMS, HEAD_DIMS, (False, True), sizes):
        for tile in {choose_tile(d, dv, spans, few): None for few in (False, True)}:
            yield Variant(kernel, d, dv, bf16, *tile, spans)
