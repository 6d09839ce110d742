"""The branches of one decoded token, each alone, and their gated sum.

Caches are stored head by head, [B, H, tokens, D]. So for each head, a branch reads one consecutive
span of the cache, or n spans, in place, by the kernels of ``selection_rows`` and
``selection_ranges``. No value is read on the host.
"""

from __future__ import annotations

import torch

from ...launch.checks import (
    DTYPES,
    MAX_BLOCKS,
    check_block_table,
    check_device,
    check_lengths,
    check_no_backward,
    check_qkv,
    check_room,
    check_scale,
    check_strides,
    check_transforms,
    check_whole,
    require,
)
from ...launch.mode import traced
from ...launch.operators import operator, rows_results
from ...launch.replay import replayed
from ...launch.shares import Shares
from ...launch.sizes import cdiv, next_power_of_2, scale_log2, strides
from ...selection.ranges.api import selection_ranges
from ...selection.ranges.forward import launch_ranges
from ...selection.rows.api import selection_rows
from ..branches import launch_sum
from .compressed import compressed_config, launch_compressed
from .kernels.scores import decode_scores_kernel


def check_groups(op: str, hq: int, h: int) -> None:
    require(h >= 1 and hq % h == 0, f"{op}: HQ={hq} query heads are not a multiple of H={h}")


def _check_cache(
    op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, paged: bool = False
) -> None:
    fits = q.dim() == 3 and k.dim() == v.dim() == 4
    place = "[pages,H,page," if paged else "[B,H,S,"
    require(
        fits and k.shape[:3] == v.shape[:3] and (paged or q.shape[0] == k.shape[0]),
        f"{op}: expected q [B,HQ,D], k {place}D], v {place}Dv]; "
        f"got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}",
    )
    check_groups(op, q.shape[1], k.shape[1])


def _rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sm_scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Check the inputs, and attend to k, v [B,H,L,...] with each key head as a row."""
    b, hq, d = q.shape
    h = k.shape[1]
    out, lse = selection_rows(
        q.reshape(b * h, hq // h, d), k.flatten(0, 1), v.flatten(0, 1), sm_scale=sm_scale
    )
    return out.view(b, hq, v.shape[3]), lse.view(b, hq)


def decode_compressed(
    q: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    cache_seqlens: torch.Tensor | None = None,
    *,
    block: int = 32,
    stride: int = 16,
    sm_scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with q [B,HQ,D] to the compressed keys of k_cmp, v_cmp [B,H,Nc,...].

    Args:
        cache_seqlens: int32 [B], the number of tokens of each entry. Only keys that end within an
            entry's tokens are seen. The values stay on the device. None: all keys are seen.
        block, stride: tokens of a compressed key, and tokens from one key to the next; used only
            with ``cache_seqlens``.

    Returns out [B,HQ,Dv] and lse float32 [B,HQ], natural; 0 and -inf for an entry that sees no key.
    Raises what ``selection_rows`` raises, and TypeError or ValueError if cache_seqlens has a wrong
    dtype, shape or device. A cache is copied unless batch and heads are one axis in memory, as in a
    contiguous cache.
    """
    op = "decode_compressed"
    _check_cache(op, q, k_cmp, v_cmp)
    check_strides(op, block, stride, stride)
    if cache_seqlens is None:
        return _rows(q, k_cmp, v_cmp, sm_scale)
    check_no_backward(op, q, k_cmp, v_cmp)
    attend = _compressed_operator if traced(q) else _compressed
    out, lse = attend(q, k_cmp, v_cmp, cache_seqlens, block, stride, sm_scale)
    return out, lse


@replayed
def _compressed(
    q: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    cache_seqlens: torch.Tensor,
    block: int,
    stride: int,
    sm_scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_qkv("decode_compressed", q, k_cmp, v_cmp)
    check_scale("decode_compressed", sm_scale)
    check_lengths("decode_compressed", "cache_seqlens", cache_seqlens, q)
    b, hq, d = q.shape
    h, length, dv = v_cmp.shape[1:]
    if b * hq == 0:
        return torch.empty((b, hq, dv), dtype=q.dtype, device=q.device), torch.empty(
            (b, hq), dtype=torch.float32, device=q.device
        )
    rows = q.reshape(b * h, hq // h, d)
    config = compressed_config(b * h, hq // h, length, 1, d, dv, q.dtype, q.device, 2)
    shares = Shares.allocate(rows, dv, config.splits)
    launch_compressed(
        *(rows, k_cmp.flatten(0, 1), v_cmp.flatten(0, 1), sm_scale, cache_seqlens.contiguous()),
        *(block // stride, 1, stride),
        *(config, shares.part, shares.plse),
    )
    out, lse = shares.merged(True)
    return out.view(b, hq, dv), lse.view(b, hq)


_compressed_operator = operator("nsa_kernels::decode_compressed", _compressed, rows_results)


def decode_window(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cache_seqlens: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    *,
    window: int,
    sm_scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with q [B,HQ,D] to the last ``window`` keys of k, v [B,H,S,...].

    Args:
        cache_seqlens: int32 [B], the number of tokens of each entry, at most S. The window ends
            with the last token. The values stay on the device. None: all entries have S tokens.
        block_table: int32 [B, n] of a paged cache, as in ``decode_step``.

    Returns out [B,HQ,Dv] and lse float32 [B,HQ], natural; 0 and -inf for an entry without a token.
    Raises what ``selection_rows`` raises, and TypeError or ValueError if cache_seqlens or
    block_table has a wrong dtype, shape or device. Without cache_seqlens, a cache is copied unless
    batch and heads can be viewed as one axis, as in a contiguous cache.
    """
    op = "decode_window"
    _check_cache(op, q, k, v, block_table is not None)
    check_whole(op, "window", window, 1)
    room = k.shape[2]
    if block_table is not None:
        check_block_table(op, block_table, cache_seqlens, q)
        room *= block_table.shape[1]
        check_room(op, room)
    if cache_seqlens is None:
        first = max(room - window, 0)
        return _rows(q, k[:, :, first:], v[:, :, first:], sm_scale)
    check_lengths(op, "cache_seqlens", cache_seqlens, q)
    end = cache_seqlens.clamp(max=room)
    ranges = torch.stack([end - min(window, room), end], -1)[:, None, None]
    ranges = ranges.expand(-1, k.shape[1], -1, -1)
    return _spans(op, q, k, v, ranges, cache_seqlens, block_table, window, sm_scale)


def decode_selected(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    cache_seqlens: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    *,
    selected_len: int | None = None,
    sm_scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with q [B,HQ,D] to the spans ``ranges`` [B,H,n,2] of k, v [B,H,S,...].

    Args:
        cache_seqlens: int32 [B], the number of tokens of each entry, at most S. Spans are clamped
            to these tokens. The values stay on the device. None: all entries have S tokens.
        block_table: int32 [B, n] of a paged cache, as in ``decode_step``.

    Returns out [B,HQ,Dv] and lse float32 [B,HQ], natural. Raises what ``selection_ranges`` raises.
    With ``cache_seqlens``, also raises ValueError if an input requires a gradient, and TypeError or
    ValueError if cache_seqlens or block_table has a wrong dtype, shape or device.
    """
    op = "decode_selected"
    _check_cache(op, q, k, v, block_table is not None)
    if block_table is not None:
        check_block_table(op, block_table, cache_seqlens, q)
        check_room(op, k.shape[2] * block_table.shape[1])
    if cache_seqlens is not None:
        check_lengths(op, "cache_seqlens", cache_seqlens, q)
        require(ranges.dim() == 4, f"{op}: expected ranges [B,H,n,2]; got {tuple(ranges.shape)}")
        return _spans(op, q, k, v, ranges, cache_seqlens, block_table, selected_len, sm_scale)
    b, hq, d = q.shape
    h = k.shape[1]
    out, lse = selection_ranges(
        q.reshape(b, 1, h, hq // h, d),
        k,
        v,
        ranges.unsqueeze(1),
        sm_scale=sm_scale,
        selected_len=selected_len,
    )
    return out.view(b, hq, v.shape[3]), lse.view(b, hq)


def _spans(
    op: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    cache_seqlens: torch.Tensor,
    block_table: torch.Tensor | None,
    longest: int | None,
    sm_scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to spans [B,H,n,2] of entries of different lengths: out [B,HQ,Dv] and lse [B,HQ]."""
    check_qkv(op, q, k, v)
    check_scale(op, sm_scale)
    check_no_backward(op, q, k, v)
    if longest is not None:
        check_whole(op, "selected_len", longest, 0)
    attend = _spans_operator if traced(q) else _launch_spans
    out, lse = attend(q, k, v, ranges, cache_seqlens, block_table, longest, sm_scale)
    return out, lse


@replayed
def _launch_spans(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    cache_seqlens: torch.Tensor,
    block_table: torch.Tensor | None,
    longest: int | None,
    sm_scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    b, hq, d = q.shape
    h = k.shape[1]
    rows = q.reshape(b, 1, h, hq // h, d)
    lengths = cache_seqlens.contiguous()
    out, lse = launch_ranges(
        *(rows, k, v, ranges.unsqueeze(1), sm_scale, longest),
        lengths=lengths,
        block_table=block_table,
    )
    return out.view(b, hq, v.shape[3]), lse.view(b, hq)


_spans_operator = operator("nsa_kernels::decode_spans", _launch_spans, rows_results)


def decode_scores(
    q: torch.Tensor,
    k_cmp: torch.Tensor,
    lse: torch.Tensor,
    n_blocks: int,
    cache_seqlens: torch.Tensor | None = None,
    *,
    block: int = 32,
    stride: int = 16,
    block_size: int = 64,
    sm_scale: float | None = None,
) -> torch.Tensor:
    """Return block scores float32 [B, H, n_blocks], as ``compressed_attention_with_scores`` does.

    Args:
        q: [B, HQ, D]. k_cmp: [B, H, Nc, D]. lse: float32 [B, HQ], of ``decode_compressed``.
        n_blocks: number of selection blocks of the context.
        cache_seqlens: int32 [B], the number of tokens of each entry. Compressed keys that end after
            these tokens are ignored. The values stay on the device. None: all keys count.

    Raises:
        TypeError: dtypes are unsupported or mixed, or cache_seqlens is not int32.
        ValueError: shapes do not fit together, a device is wrong, ``stride`` does not divide
            ``block`` and ``block_size``, or an input requires a gradient.
    """
    if traced(q):
        check_no_backward("decode_scores", q, k_cmp, lse)
    launch = _scores_operator if traced(q) else _scores
    sizes = (block, stride, block_size)
    scores: torch.Tensor = launch(q, k_cmp, lse, n_blocks, cache_seqlens, *sizes, sm_scale)
    return scores


@replayed
def _scores(
    q: torch.Tensor,
    k_cmp: torch.Tensor,
    lse: torch.Tensor,
    n_blocks: int,
    cache_seqlens: torch.Tensor | None,
    block: int,
    stride: int,
    block_size: int,
    sm_scale: float | None,
) -> torch.Tensor:
    check_qkv("decode_scores", q, k_cmp, k_cmp)
    check_no_backward("decode_scores", q, k_cmp, lse)
    check_scale("decode_scores", sm_scale)
    check_whole("decode_scores", "n_blocks", n_blocks, 0, MAX_BLOCKS)
    require(
        q.dim() == 3
        and k_cmp.dim() == 4
        and k_cmp.shape[0] == q.shape[0]
        and lse.shape == q.shape[:2]
        and lse.device == q.device,
        "decode_scores: expected q [B,HQ,D], k_cmp [B,H,Nc,D], lse [B,HQ] on one device; got "
        f"{tuple(q.shape)}, {tuple(k_cmp.shape)}, {tuple(lse.shape)}",
    )
    check_groups("decode_scores", q.shape[1], k_cmp.shape[1])
    check_strides("decode_scores", block, stride, block_size)
    if cache_seqlens is not None:
        check_lengths("decode_scores", "cache_seqlens", cache_seqlens, q)
        cache_seqlens = cache_seqlens.contiguous()
    b, hq, d = q.shape
    h, n = k_cmp.shape[1:3]
    scores = torch.empty((b, h, n_blocks), dtype=torch.float32, device=q.device)
    if scores.numel() == 0:
        return scores
    wide = 16 if q.element_size() == 4 or d > 128 else 64
    decode_scores_kernel[(b * h, cdiv(n_blocks, wide))](
        *(q, k_cmp, lse.contiguous(), scores, lse if cache_seqlens is None else cache_seqlens),
        *strides(q, k_cmp),
        *(n, h, hq // h, n_blocks, scale_log2(sm_scale, d)),
        D=d,
        BLOCK_D=next_power_of_2(d),
        BLOCK_G=max(16, next_power_of_2(hq // h)),
        BLOCK_J=wide,
        REACH=block // stride,
        SPAN=block_size // stride,
        LENGTHS=cache_seqlens is not None,
        STRIDE=1 if cache_seqlens is None else stride,
        num_warps=4,
        num_stages=1,
    )
    return scores


_scores_operator = operator(
    "nsa_kernels::decode_scores",
    _scores,
    lambda q, k_cmp, lse, n_blocks, *_: q.new_empty(
        (q.shape[0], k_cmp.shape[1], n_blocks), dtype=torch.float32
    ),
)


def gated_sum(
    compressed: torch.Tensor, selected: torch.Tensor, window: torch.Tensor, gates: torch.Tensor
) -> torch.Tensor:
    """Add up branches [..., Dv], weighted by gates [..., 3] (arXiv 2502.11089, equation 5).

    Raises:
        TypeError: dtypes are unsupported, or differ between branches.
        ValueError: shapes or devices do not fit together, or an input requires a gradient.
    """
    if traced(compressed):
        check_no_backward("gated_sum", compressed, selected, window, gates)
    launch = _sum_operator if traced(compressed) else _sum
    out: torch.Tensor = launch(compressed, selected, window, gates)
    return out


@replayed
def _sum(
    compressed: torch.Tensor, selected: torch.Tensor, window: torch.Tensor, gates: torch.Tensor
) -> torch.Tensor:
    check_transforms("gated_sum", compressed, selected, window, gates)
    same = compressed.dtype == selected.dtype == window.dtype
    if not (same and compressed.dtype in DTYPES and gates.dtype in DTYPES):
        raise TypeError(
            "gated_sum: branches and gates must be float16, bfloat16 or float32, and all branches "
            f"the same; got {compressed.dtype}, {selected.dtype}, {window.dtype}, {gates.dtype}"
        )
    check_device("gated_sum", compressed)
    check_no_backward("gated_sum", compressed, selected, window, gates)
    require(
        compressed.shape == selected.shape == window.shape
        and gates.shape == (*compressed.shape[:-1], 3)
        and compressed.device == selected.device == window.device == gates.device,
        "gated_sum: expected three branches [...,Dv] and gates [...,3] on one device; got "
        f"{tuple(compressed.shape)}, {tuple(selected.shape)}, {tuple(window.shape)}, "
        f"{tuple(gates.shape)}",
    )
    return launch_sum(
        compressed.contiguous(), selected.contiguous(), window.contiguous(), gates.contiguous()
    )


_sum_operator = operator(
    "nsa_kernels::gated_sum", _sum, lambda compressed, *_: compressed.new_empty(compressed.shape)
)
