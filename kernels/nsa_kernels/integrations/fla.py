"""``parallel_nsa`` with the signature that flash-linear-attention has (fla-core 0.5.2 and 0.6.0).

    from nsa_kernels.integrations.fla import parallel_nsa

replaces ``from fla.ops.nsa import parallel_nsa``. fla-core itself is not needed. The function
computes fla-core's definition: a compressed key is the mean of a block of ``block_size`` tokens,
these blocks do not overlap, and the selection chooses among the same blocks.
"""

from __future__ import annotations

from typing import Any

import torch

from ..attention import nsa_attention
from ..attention.means import key_offsets, means_of_blocks
from ..band import sliding_window
from ..band.attend import attend, check_band, check_cu
from ..band.geometry import Band
from ..launch.checks import check_transforms, check_whole, kind, require, softmax_scale
from ..launch.sizes import cdiv
from ..scoring.block_scores import block_scores
from ..scoring.top_n import LOCAL_BLOCKS, launch_top_n
from ..selection import block_selection_attention
from ..selection.blocks.checks import BLOCK_SIZES

OP = "parallel_nsa"
FORCED = LOCAL_BLOCKS + 1
"""How many blocks are always selected: the first, and the last two."""
MAX_INDEX = 2**31 - 1


def parallel_nsa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g_cmp: torch.Tensor | None = None,
    g_slc: torch.Tensor | None = None,
    g_swa: torch.Tensor | None = None,
    block_indices: torch.Tensor | None = None,
    block_counts: torch.Tensor | int = 16,
    block_size: int = 64,
    window_size: int = 0,
    scale: float | None = None,
    cu_seqlens: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Compute NSA by fla-core's definition; differentiable in q, k, v and the gates.

    The result is selection times g_slc, plus compression times g_cmp, plus the window times g_swa.
    If g_slc is None, it counts as 1. If g_cmp is None, there is no compression. If ``window_size``
    is 0, there is no window, whatever g_swa is.

    Args:
        q: [B, T, HQ, D], float16, bfloat16 or float32. k: [B, T, H, D]. v: [B, T, H, Dv]. HQ is any
            multiple of H, and D and Dv are in 16..256.
        g_cmp, g_slc, g_swa: gates [B, T, HQ], of any floating dtype.
        block_indices: integers [B, T, H, S], counted from the start of the query's sequence. If
            None, the blocks are chosen by the weights of the compressed keys, which needs g_cmp.
        block_counts: how many blocks a query selects if block_indices is None: the first, the last
            two, then those with the largest weights. Among equal weights, the lowest index is
            chosen. A number must be at least 3. Integers [B, T, H] give each row (query, key head)
            its own count, and the largest is read on the host. With block_indices, a tensor says
            how many of the first blocks of a row are used, and a number has no effect.
        block_size: 16, 32, 64 or 128.
        window_size: number of keys in the window, including the query's own; 0: no window.
        scale: positive factor on q.k; 1/sqrt(D) when None.
        cu_seqlens: integers [sequences + 1], if B = 1 and sequences are packed; or a pair that has
            the same tensor twice.

    Returns:
        [B, T, HQ, Dv] in q's dtype. Unlike in fla-core, a repeated block counts once, a selection
        without blocks is 0, and the number of blocks is not rounded up to a power of two.

    Raises:
        TypeError: dtypes are unsupported or mixed.
        ValueError: arguments do not fit together, or q and k differ in their number of tokens.
    """
    _check_tensors(q, k, v)
    for name, gate in (("g_cmp", g_cmp), ("g_slc", g_slc), ("g_swa", g_swa)):
        _check_gate(name, gate, q)
    _check_sizes(block_size, window_size)
    require(
        window_size == 0 or g_swa is not None,
        f"{OP}: a window_size of {window_size} needs g_swa [B,T,HQ], the gate of the window",
    )
    require(
        block_indices is not None or g_cmp is not None,
        f"{OP}: give block_indices, or g_cmp to choose blocks by the weights of compression",
    )
    _check_slots(q, k, block_indices, block_counts)
    scale = softmax_scale(OP, q, scale)
    cu = _packed(q, cu_seqlens)
    counts = block_counts if isinstance(block_counts, torch.Tensor) else None
    if block_indices is None and counts is None:
        assert g_cmp is not None and isinstance(block_counts, int)
        blocks = cdiv(q.shape[1], block_size)
        if block_counts > blocks:  # no query has more blocks
            block_counts = max(FORCED, blocks)
        gates = _together(q, g_cmp, g_slc, g_swa if window_size else None)
        return nsa_attention(
            *(q, k, v, gates),
            block=block_size,
            stride=block_size,
            block_size=block_size,
            n_selected=block_counts,
            window=max(window_size, 1),
            sm_scale=scale,
            cu_seqlens=cu,
        )
    compressed = None
    if g_cmp is not None:
        cu_keys = None if cu is None else key_offsets(cu, q.shape[1], block_size, block_size)
        k_cmp, v_cmp = means_of_blocks(k, v, block_size, block_size, cu, cu_keys)
        compressed, lse = attend(q, k_cmp, v_cmp, cu, cu_keys, block_size, block_size, 0, scale)
        if block_indices is None:
            assert counts is not None
            block_indices = _choose(q, k_cmp, lse, counts, block_size, scale, cu, cu_keys)
    assert block_indices is not None
    out = block_selection_attention(
        *(q, k, v, _slots(block_indices, counts)),
        block_size=block_size,
        sm_scale=scale,
        cu_seqlens=cu,
    )
    assert isinstance(out, torch.Tensor)
    if g_slc is not None:
        out = out * g_slc.unsqueeze(-1)
    if compressed is not None and g_cmp is not None:
        out = out + compressed * g_cmp.unsqueeze(-1)
    if window_size and g_swa is not None:
        near, _ = sliding_window(q, k, v, cu, window=window_size, sm_scale=scale)
        out = out + near * g_swa.unsqueeze(-1)
    return out.to(q.dtype)


def _check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    check_transforms(OP, q, k, v)
    check_band(OP, q, k, v)
    require(
        q.shape[1] == k.shape[1] and q.shape[2] >= 1,
        f"{OP}: expected one query for each key, and a head; got q {tuple(q.shape)} and k "
        f"{tuple(k.shape)}; for the end of a cached sequence use nsa_attention or decode_step",
    )


def _check_gate(name: str, gate: Any, q: torch.Tensor) -> None:
    if gate is None:
        return
    if not isinstance(gate, torch.Tensor) or not gate.is_floating_point():
        raise TypeError(f"{OP}: {name} must be a floating-point tensor; got {kind(gate)}")
    require(
        gate.shape == q.shape[:3] and gate.device == q.device,
        f"{OP}: expected {name} {list(q.shape[:3])} on {q.device}; got {tuple(gate.shape)} on "
        f"{gate.device}",
    )


def _check_sizes(block_size: int, window_size: int) -> None:
    check_whole(OP, "window_size", window_size, 0)
    require(
        type(block_size) is int and block_size in BLOCK_SIZES,
        f"{OP}: block_size must be one of {BLOCK_SIZES}; got {block_size!r}",
    )


def _check_slots(
    q: torch.Tensor, k: torch.Tensor, block_indices: Any, block_counts: torch.Tensor | int
) -> None:
    rows = k.shape[:3]
    if block_indices is not None:
        _check_whole_numbers("block_indices", block_indices, q)
        require(
            block_indices.dim() == 4
            and block_indices.shape[:3] == rows
            and block_indices.shape[3] >= 1,
            f"{OP}: expected block_indices {[*rows, 'S']} with S >= 1; got "
            f"{tuple(block_indices.shape)}",
        )
    if isinstance(block_counts, int):
        least = FORCED if block_indices is None else 1
        check_whole(OP, "block_counts", block_counts, least)
        return
    _check_whole_numbers("block_counts", block_counts, q)
    require(
        block_counts.shape == rows,
        f"{OP}: expected block_counts {list(rows)}, or a number; got {tuple(block_counts.shape)}",
    )


def _check_whole_numbers(name: str, x: Any, q: torch.Tensor) -> None:
    if not isinstance(x, torch.Tensor) or x.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{OP}: {name} must be int64 or int32; got {kind(x)}")
    require(x.device == q.device, f"{OP}: {name} is on {x.device}, q on {q.device}")


def _packed(q: torch.Tensor, cu_seqlens: Any) -> torch.Tensor | None:
    if cu_seqlens is None:
        return None
    if isinstance(cu_seqlens, tuple):
        require(
            len(cu_seqlens) == 2 and cu_seqlens[0] is cu_seqlens[1],
            f"{OP}: cu_seqlens of queries and of keys must be one tensor, since queries after "
            "cached keys are not supported",
        )
        cu_seqlens = cu_seqlens[0]
    _check_whole_numbers("cu_seqlens", cu_seqlens, q)
    cu: torch.Tensor = cu_seqlens.to(torch.int32).contiguous()
    check_cu(OP, "cu_seqlens", cu, q)
    return cu


def _together(
    q: torch.Tensor,
    g_cmp: torch.Tensor,
    g_slc: torch.Tensor | None,
    g_swa: torch.Tensor | None,
) -> torch.Tensor:
    """Return gates [B, T, HQ, 3] for ``nsa_attention``, in the dtype torch promotes them to."""
    slc = torch.ones_like(g_cmp) if g_slc is None else g_slc
    swa = torch.zeros_like(g_cmp) if g_swa is None else g_swa
    dtype = torch.promote_types(torch.promote_types(g_cmp.dtype, slc.dtype), swa.dtype)
    return torch.stack([gate.to(dtype) for gate in (g_cmp, slc, swa)], -1)


def _slots(block_indices: torch.Tensor, counts: torch.Tensor | None) -> torch.Tensor:
    """Return ``block_indices`` as int32, with -1 after the first ``counts`` blocks of a row."""
    # Clamp before the cast to int32, which would turn the largest int64 into block -1.
    index = block_indices.clamp(-1, MAX_INDEX).to(torch.int32)
    if counts is None:
        return index
    slot = torch.arange(index.shape[3], device=index.device)
    return torch.where(slot < counts.unsqueeze(-1), index, -1)


# torch.compile cannot trace this function, since the largest count is read on the host.
@torch.compiler.disable
@torch.no_grad()
def _choose(
    q: torch.Tensor,
    k_cmp: torch.Tensor,
    lse: torch.Tensor,
    counts: torch.Tensor,
    block_size: int,
    scale: float,
    cu: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
) -> torch.Tensor:
    """Return chosen blocks, int32 [B, T, H, S], forced ones first. S is the largest count, but at
    most the number of blocks, and at least FORCED."""
    if q.shape[0] * q.shape[1] == 0:
        return torch.empty((*counts.shape, FORCED), dtype=torch.int32, device=q.device)
    slots = max(FORCED, min(int(counts.max()), -(-q.shape[1] // block_size)))
    band = Band(block_size, block_size, 0)
    scores = block_scores(q, k_cmp, lse, band, block_size, scale, cu, cu_keys)
    return launch_top_n(scores, slots, block_size, 0, spans=False, cu_seqlens=cu)
