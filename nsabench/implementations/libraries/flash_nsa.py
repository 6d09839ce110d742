"""Duyue Ma's Scalable-Flash-Native-Sparse-Attention (`flash_nsa`): NSA as a whole, forward and
backward, its attention on compressed keys, and its block selection.

Triton, with tensor descriptors on Hopper. Its sizes and lengths are the state of a class. The
window is FlashAttention's, of version 3 or 2. Its gates are sigmoids of what it is given, so it is
given the logits of the op's gates.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines.selection_varlen import every
from nsabench.implementations.libraries import flash_attn_4
from nsabench.implementations.libraries._calls import (
    blocks_first,
    function,
    is_capturing,
    refuse_float32,
)
from nsabench.ops.selection_blocks import OP as SELECTION_BLOCKS
from nsabench.packages.catalogue import FLASH_ATTN, FLASH_NSA

HELPER = "flash_nsa:NSAHelper"
CONFIG = "flash_nsa:NSAConfig"
CORE = "flash_nsa:NSACore"
MEANS = "flash_nsa:mean_pooling"
COMPRESSED = "flash_nsa:compress_attn"
CHOICE = "flash_nsa:slc_topk_indices"
SELECTED = "flash_nsa:select_attn"
SUM = "flash_nsa.ops.combine:fused_sigmoid_combine"
ITS_WINDOWS = (
    "flash_nsa.ops.sliding_window_attention:HAVE_FA3",
    "flash_nsa.ops.sliding_window_attention:HAVE_FA2",
)
OF_A_BRANCH = ("q", "k", "v", "sm_scale")
FIRST, LOCAL = 1, 2  # blocks that every query selects
# A row is read up to the number of blocks that there are, and a block given twice counts twice.
DISTRIBUTIONS = tuple(
    d for d in SELECTION_BLOCKS.distributions if d not in ("repeated", "empty_rows")
)
LEAST_GATE = 2.0**-12  # a gate that was rounded to 0 or 1 has no logit


def _prepared(cu_seqlens: Tensor, **sizes: int) -> None:
    """Its state for such sizes and sequences, as its own modules prepare it in each call.

    Raises `Unsupported` in a capture: it compares the sequences with those before on the host.
    """
    if is_capturing():
        raise Unsupported(f"{FLASH_NSA.name} reads cu_seqlens on the host in each call")
    helper: Any = function(FLASH_NSA, HELPER)
    if any(getattr(helper, name) != size for name, size in sizes.items()):
        kept = ("kernel_size", "stride", "block_size", "window_size", "top_n")
        state = {name: getattr(helper, name) for name in kept} | sizes
        helper.set_hyperparameters(**state, num_init_blocks=FIRST, num_local_blocks=LOCAL)
        helper.x_cu_seqlens = None  # what it derived of these is of other sizes
    helper.init_cu_seqlens(cu_seqlens.clone())  # it keeps them, to compare the next ones with


def _packed(q: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    return every(q.shape[1], q.shape[0], q.device) if cu_seqlens is None else cu_seqlens


def _flat(*tensors: Tensor) -> list[Tensor]:
    """[B,T,…] as [B*T,…]."""
    return [x.flatten(0, 1).contiguous() for x in tensors]


def _logits(gates: Tensor) -> Tensor:
    """float32, since logits of rounded gates would be rounded once more."""
    return torch.logit(gates.float(), eps=LEAST_GATE)


@cache
def _core(device: torch.device, block: int, stride: int, width: int, **sizes: int) -> Any:
    """Its module for training, which has no parameters where compression is by means."""
    config = function(FLASH_NSA, CONFIG)(
        kernel_size=block, stride=stride, head_dim=width, num_init_blocks=FIRST,
        num_local_blocks=LOCAL, **sizes,
    )  # fmt: skip
    return function(FLASH_NSA, CORE)(config).to(device)


@implementation(
    op="nsa_attention",
    name="flash_nsa",
    role="baseline",
    devices=("cuda",),
    package=FLASH_NSA,
    compiled_by="triton",
)
def flash_nsa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """`NSACore`, its window by FlashAttention-3 or -2."""
    refuse_float32(q, FLASH_NSA.name)
    if not any(function(FLASH_NSA, where) for where in ITS_WINDOWS):
        raise Unsupported(
            f"{FLASH_NSA.name} takes its window from flash-attn: {FLASH_ATTN.install}"
        )
    packed = _packed(q, cu_seqlens)
    _prepared(
        packed, kernel_size=block, stride=stride, block_size=block_size, top_n=n_selected,
        window_size=window - 1,
    )  # fmt: skip
    # After that: as it is made it sets the same sizes, which would then not be seen to be new.
    core = _core(
        q.device, block, stride, q.shape[3], v_head_dim=v.shape[3], num_heads=q.shape[2],
        num_kv_heads=k.shape[2], block_size=block_size, top_n=n_selected, window_size=window - 1,
    )  # fmt: skip
    core.sm_scale = sm_scale
    out: Tensor = core(*_flat(q, k, v, _logits(gates)), packed)
    return out.view(*q.shape[:3], v.shape[3])


@implementation(
    op="nsa_attention",
    name="flash_nsa_fa4",
    role="baseline",
    devices=("cuda",),
    package=FLASH_NSA,
    compiled_by="triton",
)
def flash_nsa_fa4(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """Its parts, put together as its `HFNSACore` does, with the window of FlashAttention-4."""
    refuse_float32(q, FLASH_NSA.name)
    means = function(FLASH_NSA, MEANS, "x")
    choose = function(FLASH_NSA, CHOICE, "q", "k", "lse", "sm_scale", "maybe_efficient_version")
    select = function(FLASH_NSA, SELECTED, "q", "k", "v", "topk", "sm_scale")
    add = function(FLASH_NSA, SUM, "a", "b", "c", "w")
    packed = _packed(q, cu_seqlens)
    _prepared(
        packed, kernel_size=block, stride=stride, block_size=block_size, top_n=n_selected,
        window_size=window - 1,
    )  # fmt: skip
    queries, keys, values, logits = _flat(q, k, v, _logits(gates))
    k_cmp, v_cmp = means(keys), means(values)
    attend = function(FLASH_NSA, COMPRESSED, *OF_A_BRANCH)
    compressed, lse = attend(queries, k_cmp, v_cmp, sm_scale=sm_scale)
    chosen, _ = choose(queries, k_cmp, lse, sm_scale=sm_scale, maybe_efficient_version=True)
    selected = select(queries, keys, values, chosen, sm_scale=sm_scale)
    alone = (queries[None], keys[None], values[None])
    near = flash_attn_4.causal(*alone, packed, sm_scale, max_seqlen, window)
    out: Tensor = add(compressed, selected, near[0], logits)
    return out.view(*q.shape[:3], v.shape[3])


@implementation(
    op="selection_blocks",
    name="flash_nsa",
    role="baseline",
    devices=("cuda",),
    distributions=DISTRIBUTIONS,
    package=FLASH_NSA,
    compiled_by="triton",
)
def flash_nsa_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> Tensor:
    """`select_attn`: a program a query, and in the backward one a block over its queries."""
    refuse_float32(q, FLASH_NSA.name)
    select = function(FLASH_NSA, SELECTED, "q", "k", "v", "topk", "sm_scale")
    slots = block_indices.shape[3]
    # Compressed keys play no part; the sizes must fit one another.
    _prepared(
        _packed(q, cu_seqlens), block_size=block_size, kernel_size=block_size, stride=block_size,
        top_n=slots,
    )  # fmt: skip
    none = -(-q.shape[0] * q.shape[1] // block_size)  # no block of any sequence
    chosen = blocks_first(block_indices).flatten(0, 1).transpose(0, 1)
    chosen = chosen.where(chosen >= 0, none).contiguous()
    out: Tensor = select(*_flat(q, k, v), chosen, sm_scale=sm_scale)
    return out.view(*q.shape[:3], v.shape[3])
