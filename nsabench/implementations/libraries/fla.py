"""`parallel_nsa` of flash-linear-attention, with given blocks and with its own selection.

Its own selection scores compressed blocks that do not overlap, as the op `nsa_without_window` does.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations._register import Packing, baseline
from nsabench.implementations.libraries import _calls
from nsabench.implementations.torch_attention import is_power_of_two, wants_grad
from nsabench.registry import Package

FLA = Package("fla-core", "MIT")
PARALLEL = "fla.ops.nsa.parallel:parallel_nsa"
GATES = ("g_cmp", "g_slc", "g_swa")
TAKES: tuple[str, ...] = ("q", "k", "v", *GATES, "block_indices", "block_counts")
TAKES += ("block_size", "window_size", "scale", "cu_seqlens")


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
    attend = _calls.find_function(FLA, PARALLEL, *TAKES)
    _refuse_group(q, k)
    slots = blocks.shape[-1]
    if wants_grad(q, k, v) and not is_power_of_two(slots):
        raise Unsupported(f"the backward of fla-core takes 1, 2, 4, … blocks a query, not {slots}")
    size, scale = options["block_size"], options["sm_scale"]
    indices = {"block_indices": blocks.long(), "block_counts": slots, "block_size": size}
    return _attend(attend, cu, q=q, k=k, v=v, scale=scale, **indices)


@baseline("nsa_without_window", "fla_whole", package=FLA, compiled_by="triton")
def fla_whole(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor, cu: Packing = None, **options: Any
) -> Tensor:
    attend = _calls.find_function(FLA, PARALLEL, *TAKES)
    _refuse_group(q, k)
    size, count = options["block_size"], options["n_selected"]
    if not is_power_of_two(size):
        raise Unsupported(f"fla-core chooses blocks of 16, 32, 64, … tokens, not of {size}")
    if not is_power_of_two(count):
        raise Unsupported(f"fla-core chooses 1, 2, 4, … blocks a query, not {count}")
    if size < 2 * count:
        raise Unsupported(f"fla-core chooses at most {size // 2} blocks of {size}")
    sizes = {"block_counts": count, "block_size": size}
    of_branches = dict(zip(GATES[:2], gates.unbind(-1), strict=True))
    return _attend(attend, cu, q=q, k=k, v=v, scale=options["sm_scale"], **sizes, **of_branches)
