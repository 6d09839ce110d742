"""The library's decode step, whole and branch by branch, as nsabench candidates."""

from __future__ import annotations

from dataclasses import asdict

import torch

import nsa_kernels
from nsabench import implementation
from nsabench.ops import DecodeSizes

DEVICES = ("cuda", "interpreter")


def _reads(**branches: tuple[int, int]) -> str:
    """Describe how many keys a key head reads in each branch, and should read. It should read all
    complete compressed keys, n blocks (the last one up to the token), and the window."""
    if len(branches) > 1:
        counted, expected = (sum(counts) for counts in zip(*branches.values(), strict=True))
        branches["total"] = (counted, expected)
    return " ".join(
        f"reads_{name}={counted} expected={expected}"
        for name, (counted, expected) in branches.items()
    )


def _selected_counts(ranges: torch.Tensor, tokens: int, block_size: int) -> tuple[int, int]:
    counted = ranges.clamp(0, tokens).diff(dim=-1).clamp(min=0).sum((2, 3))
    whole = min(ranges.shape[2] * block_size, -(-tokens // block_size) * block_size)
    return int(counted.max()), whole - -tokens % block_size


def _selected_reads(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    *,
    block_size: int,
    sm_scale: float,
) -> str:
    return _reads(sel=_selected_counts(ranges, k.shape[2], block_size))


def _window_counts(k: torch.Tensor, window: int) -> tuple[int, int]:
    tokens = k.shape[2]
    return k[:, :, max(tokens - window, 0) :].shape[2], min(window, tokens)


def _window_reads(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: int, sm_scale: float
) -> str:
    return _reads(win=_window_counts(k, window))


def _step_reads(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    *,
    sizes: DecodeSizes,
    sm_scale: float,
) -> str:
    tokens = k.shape[2]
    _, lse = nsa_kernels.decode_compressed(q, k_cmp, v_cmp, sm_scale=sm_scale)
    scores = nsa_kernels.decode_scores(
        q,
        k_cmp,
        lse,
        -(-tokens // sizes.block_size),
        block=sizes.block,
        stride=sizes.stride,
        block_size=sizes.block_size,
        sm_scale=sm_scale,
    ).unsqueeze(1)
    ranges = nsa_kernels.select_blocks(
        scores, sizes.n_selected, block_size=sizes.block_size, first_position=tokens - 1
    )[:, 0]
    complete = max(0, (tokens - sizes.block) // sizes.stride + 1)
    return _reads(
        cmp=(k_cmp.shape[2], complete),
        sel=_selected_counts(ranges, tokens, sizes.block_size),
        win=_window_counts(k, sizes.window),
    )


@implementation(op="decode_compressed", name="nsa_decode", devices=DEVICES, compiled_by="triton")
def decode_compressed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float
) -> torch.Tensor:
    """Run the kernel for rows on the compressed keys in place."""
    return nsa_kernels.decode_compressed(q, k, v, sm_scale=sm_scale)[0]


@implementation(
    op="decode_selected",
    name="nsa_decode",
    devices=DEVICES,
    compiled_by="triton",
    config=_selected_reads,
)
def decode_selected(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    *,
    block_size: int,
    sm_scale: float,
) -> torch.Tensor:
    """Run the kernel for spans on the cache in place."""
    most = ranges.shape[2] * block_size
    return nsa_kernels.decode_selected(q, k, v, ranges, selected_len=most, sm_scale=sm_scale)[0]


@implementation(
    op="decode_window",
    name="nsa_decode",
    devices=DEVICES,
    compiled_by="triton",
    config=_window_reads,
)
def decode_window(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: int, sm_scale: float
) -> torch.Tensor:
    """Run the kernel for rows on the end of the cache in place."""
    return nsa_kernels.decode_window(q, k, v, window=window, sm_scale=sm_scale)[0]


@implementation(op="decode_dense", name="nsa_decode", devices=DEVICES, compiled_by="triton")
def decode_dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float
) -> torch.Tensor:
    """Run the kernel for rows on the whole cache."""
    return nsa_kernels.decode_window(q, k, v, window=k.shape[2], sm_scale=sm_scale)[0]


@implementation(
    op="decode_step", name="nsa_decode", devices=DEVICES, compiled_by="triton", config=_step_reads
)
def decode_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    *,
    sizes: DecodeSizes,
    sm_scale: float,
) -> torch.Tensor:
    """Run the kernels for rows and spans on the caches in place, and select on the device."""
    return nsa_kernels.decode_step(q, k, v, k_cmp, v_cmp, gates, **asdict(sizes), sm_scale=sm_scale)
