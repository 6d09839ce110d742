"""One token with a cache."""

from __future__ import annotations

import torch

from nsabench import implementation

from ...attention.decode import (
    decode_compressed,
    decode_scores,
    decode_selected,
    decode_step,
    decode_window,
)
from ...scoring import select_blocks
from .record import DEVICES


def _decode_reads(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    ranges: torch.Tensor,
    *,
    branch: str,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float,
) -> str:
    """Keys that a head reads in each branch, counted in what its kernel is given, and what they
    should be: all that are complete, n blocks (the last cut off at the token), the window."""
    tokens = k.shape[2] or (k_cmp.shape[2] - 1) * stride + block
    if branch == "total":
        _, lse = decode_compressed(q, k_cmp, v_cmp, sm_scale=sm_scale)
        scores = decode_scores(
            q,
            k_cmp,
            lse,
            -(-tokens // block_size),
            block=block,
            stride=stride,
            block_size=block_size,
            sm_scale=sm_scale,
        ).unsqueeze(1)
        ranges = select_blocks(
            scores, n_selected, block_size=block_size, first_position=tokens - 1
        )[:, 0]
    counted = ranges.clamp(0, tokens).diff(dim=-1).clamp(min=0).sum((2, 3))
    whole = min(n_selected * block_size, -(-tokens // block_size) * block_size)
    reads = {
        "cmp": (k_cmp.shape[2], max(0, (tokens - block) // stride + 1)),
        "sel": (int(counted.max()), whole - -tokens % block_size),
        "win": (k[:, :, max(tokens - window, 0) :].shape[2], min(window, tokens)),
        "dense": (k.shape[2], tokens),
    }
    wanted = ("cmp", "sel", "win") if branch == "total" else (branch,)
    parts = [f"reads_{name}={reads[name][0]} expected={reads[name][1]}" for name in wanted]
    if branch == "total":
        sums = [sum(reads[name][i] for name in wanted) for i in (0, 1)]
        parts.append(f"reads_total={sums[0]} expected={sums[1]}")
    return " ".join(parts)


@implementation(op="decode", name="nsa_decode", devices=DEVICES, config=_decode_reads)
def nsa_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    ranges: torch.Tensor,
    *,
    branch: str,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float,
) -> torch.Tensor:
    """The kernels for rows and spans on the caches in place; selection on the device."""
    if branch == "cmp":
        return decode_compressed(q, k_cmp, v_cmp, sm_scale=sm_scale)[0]
    if branch == "sel":
        chosen = n_selected * block_size
        return decode_selected(q, k, v, ranges, selected_len=chosen, sm_scale=sm_scale)[0]
    if branch == "win":
        return decode_window(q, k, v, window=window, sm_scale=sm_scale)[0]
    if branch == "dense":
        return decode_window(q, k, v, window=k.shape[2], sm_scale=sm_scale)[0]
    return decode_step(
        q,
        k,
        v,
        k_cmp,
        v_cmp,
        gates,
        block=block,
        stride=stride,
        block_size=block_size,
        n_selected=n_selected,
        window=window,
        sm_scale=sm_scale,
    )
