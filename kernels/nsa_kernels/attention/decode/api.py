"""``decode_step``: NSA for one token and its caches, with three branches and their gated sum."""

from __future__ import annotations

import torch

from ...launch.checks import check_no_backward
from ...launch.mode import traced
from ...launch.operators import operator, result_like_q
from ...launch.replay import replayed
from .step import run_step


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
    step = _launch
    if traced(q):
        check_no_backward("decode_step", q, k, v, k_cmp, v_cmp, gates)
        step = _operator
    sizes = (block, stride, block_size, n_selected, window)
    gates = gates.contiguous()  # a copy in ``_launch`` would prevent replays
    out: torch.Tensor = step(
        q, k, v, k_cmp, v_cmp, gates, cache_seqlens, block_table, *sizes, sm_scale
    )
    return out


_launch = replayed(run_step)
_operator = operator("nsa_kernels::decode_step", _launch, result_like_q)
