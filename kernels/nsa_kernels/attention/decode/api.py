"""``decode_step``: NSA for one token and its caches, with three branches and their gated sum.

No value is read on the host.
"""

from __future__ import annotations

from typing import Any

import torch

from ...launch.checks import (
    MAX_BLOCKS,
    check_block_table,
    check_lengths,
    check_no_backward,
    check_qkv,
    check_room,
    check_strides,
    check_transforms,
    check_whole,
    require,
    softmax_scale,
)
from ...launch.mode import traced
from ...launch.operators import operator
from ...launch.replay import replayed
from ...scoring.top_n import LOCAL_BLOCKS
from .branches import check_groups
from .step import launch_step


def _check_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    paged: bool,
    n_selected: int,
) -> None:
    check_qkv("decode_step", q, k_cmp, v_cmp)
    place = "[pages,H,page," if paged else "[B,H,S,"
    require(
        q.dim() == 3
        and q.shape[1] >= 1
        and all(x.dim() == 4 for x in (k, v, k_cmp, v_cmp))
        and (paged or k.shape[0] == q.shape[0])
        and k_cmp.shape[0] == q.shape[0]
        and k.shape[:3] == v.shape[:3]
        and k_cmp.shape[:3] == v_cmp.shape[:3]
        and k.shape[1] == k_cmp.shape[1]
        and v.shape[3] == v_cmp.shape[3]
        and gates.shape == (*q.shape[:2], 3)
        and gates.device == q.device,
        f"decode_step: expected q [B,HQ,D], caches k {place}D] and v {place}Dv], "
        "k_cmp [B,H,Nc,D], v_cmp [B,H,Nc,Dv] and gates [B,HQ,3] on one device; got "
        f"{', '.join(str(tuple(x.shape)) for x in (q, k, v, k_cmp, v_cmp, gates))}",
    )
    if not gates.is_floating_point():
        raise TypeError(f"decode_step: gates must be of a floating dtype; got {gates.dtype}")
    check_groups("decode_step", q.shape[1], k.shape[1])
    require(
        n_selected > LOCAL_BLOCKS,
        f"decode_step: n_selected must be over {LOCAL_BLOCKS} (local blocks); got {n_selected}",
    )


def decode_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    cache_seqlens: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    *,
    block: int = 32,
    stride: int = 16,
    block_size: int = 64,
    n_selected: int = 16,
    window: int = 512,
    sm_scale: float | None = None,
) -> torch.Tensor:
    """Compute NSA for the last token of each cache (arXiv 2502.11089, section 3).

    Args:
        q: [B, HQ, D], float16, bfloat16 or float32.
        k, v: caches [B, H, S, D] and [B, H, S, Dv]; the token's own key and value are at S - 1.
        k_cmp, v_cmp: compressed keys and values that are complete, [B, H, Nc, D] and
            [B, H, Nc, Dv]; Nc may be 0.
        gates: [B, HQ, 3], of compression, selection, window.
        cache_seqlens: int32 [B], the number of tokens of each entry; S and Nc are then capacities.
            The query is the last of these tokens. The values stay on the device, so that one CUDA
            graph serves all steps of a generation. An entry of 0 tokens gives 0. More than S tokens
            count as S. None: all entries have S tokens and Nc compressed keys.
        block_table: int32 [B, n], only with ``cache_seqlens``. It says that keys and values are
            paged: k [pages, H, page, D] and v [pages, H, page, Dv] are a pool, of any strides, and
            S is n * page. Token t of an entry is in page block_table[entry, t // page], at place
            t % page. The table is not read past the tokens of an entry. If a page is below 0 or not
            in the pool, its keys are not attended to. Compressed keys are not paged.
        n_selected: number of selected blocks of ``block_size`` tokens: the first, the last two, and
            those with the highest scores.
        block, stride, block_size, window, sm_scale: as for the branches.

    Returns:
        out [B, HQ, Dv] in q's dtype.

    Raises:
        TypeError: dtypes are unsupported or mixed, or cache_seqlens or block_table is not int32.
        ValueError: shapes do not fit together, the branches refuse a size, or an input requires a
            gradient.
    """
    attend = _checked_step if traced(q) else _launch
    sizes = (block, stride, block_size, n_selected, window)
    gates = gates.contiguous()  # a copy in ``_launch`` would prevent replays
    return attend(q, k, v, k_cmp, v_cmp, gates, cache_seqlens, block_table, *sizes, sm_scale)


def _checked_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    cache_seqlens: torch.Tensor | None,
    block_table: torch.Tensor | None,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float | None,
) -> torch.Tensor:
    check_qkv("decode_step", q, k, v)
    check_transforms("decode_step", k_cmp, v_cmp, gates)
    check_no_backward("decode_step", q, k, v, k_cmp, v_cmp, gates)
    check_whole("decode_step", "window", window, 1)
    check_whole("decode_step", "n_selected", n_selected, 1, MAX_BLOCKS)
    check_strides("decode_step", block, stride, block_size)
    scale = softmax_scale("decode_step", q, sm_scale)
    step = _operator if traced(q) else _step
    sizes = (block, stride, block_size, n_selected, window)
    out: torch.Tensor = step(
        q, k, v, k_cmp, v_cmp, gates, cache_seqlens, block_table, *sizes, scale
    )
    return out


_launch = replayed(_checked_step)


def _step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    cache_seqlens: torch.Tensor | None,
    block_table: torch.Tensor | None,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float,
) -> torch.Tensor:
    _check_step(q, k, v, k_cmp, v_cmp, gates, block_table is not None, n_selected)
    room = k.shape[2]
    if block_table is not None:
        check_block_table("decode_step", block_table, cache_seqlens, q)
        room *= block_table.shape[1]
    check_room("decode_step", room)
    if cache_seqlens is not None:
        check_lengths("decode_step", "cache_seqlens", cache_seqlens, q)
        cache_seqlens = cache_seqlens.contiguous()
    # A larger window would overflow int32 in kernels.
    window = min(window, room)
    sizes = (block, stride, block_size, n_selected, window)
    return launch_step(q, k, v, k_cmp, v_cmp, gates, *sizes, sm_scale, cache_seqlens, block_table)


_operator = operator("nsa_kernels::decode_step", _step)


@_operator.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> torch.Tensor:
    return q.new_empty((*q.shape[:2], v.shape[3]))
