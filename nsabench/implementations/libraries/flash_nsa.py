"""Scalable-Flash-Native-Sparse-Attention by Duyue Ma, whose sizes are attributes of one class."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import Packing, baseline
from nsabench.implementations.libraries import _calls, flash_attn
from nsabench.registry import Package

REPOSITORY = "https://github.com/mdy666/Scalable-Flash-Native-Sparse-Attention"
FLASH_NSA = Package("flash-nsa", "MIT", f"-e git+{REPOSITORY}@fcf117c3c8a1#egg=flash-nsa")
HELPER = "flash_nsa:NSAHelper"
MEANS = "flash_nsa:mean_pooling"
COMPRESSED = "flash_nsa:compress_attn"
CHOICE = "flash_nsa:slc_topk_indices"
SELECTED = "flash_nsa:select_attn"
SUM = "flash_nsa.ops.combine:fused_sigmoid_combine"
FIRST, LOCAL = 1, 2  # how many first and how many last blocks every query selects
LEAST_GATE = 2.0**-12  # gates are moved this far from 0 and from 1, which have no logit
_function = partial(_calls.find_function, FLASH_NSA)


def _prepare_state(cu_seqlens: Tensor, **sizes: int) -> None:
    """Set the state of the library, as its modules do in each call.

    Raises `Unsupported` while a CUDA graph is captured.
    """
    if _calls.is_capturing():
        raise Unsupported(f"{FLASH_NSA.name} reads cu_seqlens on the host in each call")
    helper = _function(HELPER)
    if any(getattr(helper, name) != size for name, size in sizes.items()):
        kept = ("kernel_size", "stride", "block_size", "window_size", "top_n")
        state = {name: getattr(helper, name) for name in kept} | sizes
        helper.set_hyperparameters(**state, num_init_blocks=FIRST, num_local_blocks=LOCAL)
        helper.x_cu_seqlens = None  # forget what was derived from other sizes
    helper.init_cu_seqlens(cu_seqlens.clone())  # a copy, since the library keeps it


@baseline("nsa_attention", "flash_nsa_fa4", package=FLASH_NSA, compiled_by="triton")
def flash_nsa_fa4(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor, cu: Packing = None, **options: Any
) -> Tensor:
    _calls.refuse_float32(q, FLASH_NSA.name)
    means = _function(MEANS, "x")
    choose = _function(CHOICE, "q", "k", "lse", "sm_scale", "maybe_efficient_version")
    select = _function(SELECTED, "q", "k", "v", "topk", "sm_scale")
    add = _function(SUM, "a", "b", "c", "w")
    packed, scale = _torch.get_cu_seqlens(q, cu), options["sm_scale"]
    _prepare_state(
        packed,
        kernel_size=options["block"],
        stride=options["stride"],
        block_size=options["block_size"],
        top_n=options["n_selected"],
    )
    # The library takes the logits of gates. They stay float32, since rounding adds an error.
    logits = torch.logit(gates.float(), eps=LEAST_GATE)
    queries, keys, values, logits = _calls.flatten_batch(q, k, v, logits)
    k_cmp, v_cmp = means(keys), means(values)
    attend = _function(COMPRESSED, "q", "k", "v", "sm_scale")
    compressed, lse = attend(queries, k_cmp, v_cmp, sm_scale=scale)
    chosen, _ = choose(queries, k_cmp, lse, sm_scale=scale, maybe_efficient_version=True)
    selected = select(queries, keys, values, chosen, sm_scale=scale)
    longest, window = (options["max_seqlen"],) * 2, options["window"]
    near = flash_attn.FLASH_4(queries, keys, values, (packed, packed), longest, scale, window)
    out = add(compressed, selected, near, logits)
    return out.view(*q.shape[:3], v.shape[3])


@_calls.selected_blocks("flash_nsa", FLASH_NSA, compiled_by="triton")
def flash_nsa_blocks(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, cu: Packing = None, **options: Any
) -> Tensor:
    _calls.refuse_float32(q, FLASH_NSA.name)
    select = _function(SELECTED, "q", "k", "v", "topk", "sm_scale")
    size = options["block_size"]
    # Selection ignores the sizes of compression, but the library requires that they fit the block.
    sizes = {"block_size": size, "kernel_size": size, "stride": size, "top_n": blocks.shape[3]}
    _prepare_state(_torch.get_cu_seqlens(q, cu), **sizes)
    none = -(-q.shape[0] * q.shape[1] // size)  # larger than any block's number
    chosen = _calls.blocks_first(blocks).flatten(0, 1).transpose(0, 1)
    chosen = chosen.where(chosen >= 0, none).contiguous()
    out = select(*_calls.flatten_batch(q, k, v), chosen, sm_scale=options["sm_scale"])
    return out.view(*q.shape[:3], v.shape[3])
