"""`parallel_nsa` of flash-linear-attention, with given indices and with its own selection.

Its own selection compresses blocks of `block_size` tokens without overlap: op `nsa_without_window`.
With a window by flash-attn it is `nsa_attention`, if block, stride and block_size are equal.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations._register import Packing, baseline
from nsabench.implementations.libraries import _calls, flash_attn
from nsabench.implementations.libraries._catalogue import FLA
from nsabench.implementations.torch_attention import is_power_of_two, wants_grad

PARALLEL = "fla.ops.nsa.parallel:parallel_nsa"
GATES = ("g_cmp", "g_slc", "g_swa")
TAKES: tuple[str, ...] = ("q", "k", "v", *GATES, "block_indices", "block_counts")
TAKES += ("block_size", "window_size", "scale", "cu_seqlens")
_baseline = partial(baseline, package=FLA, compiled_by="triton")


def _refuse_group(q: Tensor, k: Tensor) -> None:
    group = q.shape[2] // k.shape[2]
    if group < 16 or not is_power_of_two(group):
        raise Unsupported(f"fla-core takes groups of 16, 32, … heads, not {group}")


def _attend(attend: Any, cu: Packing, **options: Any) -> Tensor:
    left_out = {**dict.fromkeys(GATES), "block_indices": None, "window_size": 0}
    packed = None if cu is None else cu.long()
    return attend(**{**left_out, **options}, cu_seqlens=packed)


@_calls.selected_blocks("fla", FLA, compiled_by="triton")
def fla(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, cu: Packing = None, **options: Any
) -> Tensor:
    """`parallel_nsa` with `block_indices`, without its other branches."""
    attend = _calls.find_function(FLA, PARALLEL, *TAKES)
    _refuse_group(q, k)
    slots = blocks.shape[-1]
    if wants_grad(q, k, v) and not is_power_of_two(slots):
        raise Unsupported(f"the backward of fla-core takes 1, 2, 4, … blocks a query, not {slots}")
    size, scale = options["block_size"], options["sm_scale"]
    indices = {"block_indices": blocks.long(), "block_counts": slots, "block_size": size}
    return _attend(attend, cu, q=q, k=k, v=v, scale=scale, **indices)


@_baseline("nsa_without_window", "fla_whole")
def fla_whole(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor, cu: Packing = None, **options: Any
) -> Tensor:
    """`parallel_nsa` with compression and selection, without a window."""
    attend = _calls.find_function(FLA, PARALLEL, *TAKES)
    _refuse_group(q, k)
    size, count, window = options["block_size"], options["n_selected"], options.get("window", 0)
    if not is_power_of_two(size):
        raise Unsupported(f"fla-core chooses blocks of 16, 32, 64, … tokens, not of {size}")
    if not is_power_of_two(count):
        raise Unsupported(f"fla-core chooses 1, 2, 4, … blocks a query, not {count}")
    if size < 2 * count:
        raise Unsupported(f"fla-core chooses at most {size // 2} blocks of {size}")
    sizes = {"block_counts": count, "block_size": size, "window_size": window}
    of_branches = dict(zip(GATES if window else GATES[:2], gates.unbind(-1), strict=True))
    return _attend(attend, cu, q=q, k=k, v=v, scale=options["sm_scale"], **sizes, **of_branches)


@_baseline("nsa_attention", "fla_whole")
def fla_whole_with_window(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor, cu: Packing = None, **options: Any
) -> Tensor:
    """`parallel_nsa` with all three branches, the window by flash-attn."""
    _calls.find_function(FLA, PARALLEL, *TAKES)
    block, stride, size = options["block"], options["stride"], options["block_size"]
    if not block == stride == size:
        raise Unsupported(
            f"fla-core compresses blocks of {size} without overlap (op nsa_without_window), "
            f"not blocks of {block} tokens every {stride}"
        )
    flash_attn.FLASH.find(flash_attn.PLAIN, "q", "k", "v", "softmax_scale", "causal", "window_size")
    scale = options["sm_scale"]
    if abs(scale - q.shape[3] ** -0.5) > 1e-6 * scale:
        raise Unsupported("the window of fla-core always scales by 1/sqrt(D)")
    return fla_whole(q, k, v, gates, cu, **options)
