"""Attention in torch 2.4 and later: SDPA, the bundled FlashAttention, and FlexAttention."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from functools import cache, wraps
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from nsabench import Unsupported

T = TypeVar("T")
Attention = Callable[[Tensor, Tensor, Tensor, float], Tensor]  # q, k, v, sm_scale
FlashAttention = Callable[..., Tensor]  # takes the arguments of `aten_flash`

# The most elements of a dense mask. Baselines with larger masks would be too slow to matter.
MAX_MASK_ELEMENTS = 1 << 31
TILE = 128  # a tile of a BlockMask has this many queries and this many keys

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
BACKENDS_ON_CPU = ("flash", "math")


def forced(attention: Attention, backend: str) -> Attention:
    """Restrict `attention` to a backend of SDPA. Calls without a kernel raise `Unsupported`."""

    def attend(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
        with sdpa_kernel(BACKENDS[backend]):
            try:
                return attention(q, k, v, sm_scale)
            except RuntimeError as error:
                if "No available kernel" not in str(error):
                    raise
                message = f"SDPA's backend {backend} has no kernel for these inputs"
                raise Unsupported(message) from error

    return attend


SHARES_HEADS = torch.__version__ >= (2, 5)  # SDPA has `enable_gqa`


def share_heads(shared: bool = True) -> dict[str, bool]:
    """Return SDPA's option for heads that share K and V. Raises `Unsupported` before torch 2.5."""
    if shared and not SHARES_HEADS:
        raise Unsupported(f"SDPA of torch {torch.__version__} cannot share K and V between heads")
    return {"enable_gqa": True} if shared else {}


@cache
def accepts(function: Any, *names: str) -> bool:
    return set(names) <= set(inspect.signature(function).parameters)


def memoised(most: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Keep the newest `most` results, but none made in a capture, which the graph may overwrite."""

    def decorate(make: Callable[..., T]) -> Callable[..., T]:
        memory: dict[tuple[Hashable, ...], T] = {}

        @wraps(make)
        def get(*sizes: Any) -> T:
            if sizes in memory:
                return memory[sizes]
            value = make(*sizes)
            if torch.cuda.is_available():
                if torch.cuda.is_current_stream_capturing():
                    return value
                torch.cuda.synchronize()
            if len(memory) >= most:
                del memory[next(iter(memory))]
            memory[sizes] = value
            return value

        return get

    return decorate


def wants_grad(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


@memoised(64)
def equal_cu_seqlens(step: int, rows: int, device: torch.device) -> Tensor:
    return torch.arange(0, (rows + 1) * step, step, dtype=torch.int32, device=device)


def get_cu_seqlens(q: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    return equal_cu_seqlens(q.shape[1], q.shape[0], q.device) if cu_seqlens is None else cu_seqlens


def sequence_starts(tokens: int, packing: tuple[Tensor, ...], device: torch.device) -> Tensor:
    """Return where the sequence of each token begins, int64 [T]. `packing` is cu_seqlens or ()."""
    if not packing:
        return torch.zeros(tokens, dtype=torch.int64, device=device)
    [cu_seqlens] = packing
    lengths = cu_seqlens.diff().long()
    return torch.repeat_interleave(cu_seqlens[:-1].long(), lengths, output_size=tokens)


def check_flash(q: Tensor, v: Tensor) -> None:
    if q.dtype == torch.float32:
        raise Unsupported("FlashAttention takes float16 and bfloat16 only")
    if q.shape[-1] != v.shape[-1] or q.shape[-1] % 8:
        raise Unsupported("FlashAttention needs D = Dv, a multiple of 8")


@cache
def _aten_takes_window() -> bool:
    schema = torch.ops.aten._flash_attention_forward.default._schema
    return "window_size_left" in {argument.name for argument in schema.arguments}


def aten_flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu: tuple[Tensor, Tensor] | None,
    longest: tuple[int, int],
    sm_scale: float,
    window: int = 0,
    *,
    causal: bool = True,
) -> Tensor:
    """Run the FlashAttention that torch bundles: [B,T,H,D] with `cu` None, else packed [total,H,D].

    window: how many keys a query sees; 0: all. causal: a mask, aligned at the last query and key.
    """
    check_flash(q, v)
    if k.numel() == 0:
        return torch.zeros_like(q)
    extra: dict[str, Any] = {}
    if window:
        if not _aten_takes_window():
            raise Unsupported(f"FlashAttention in torch {torch.__version__} takes no window")
        extra = {"window_size_left": window - 1, "window_size_right": 0}
    return torch.ops.aten._flash_attention_forward(
        q, k, v, *(cu or (None, None)), *longest, 0.0, causal, False, scale=sm_scale, **extra
    )[0]


def kept_sdpa(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, sm_scale: float) -> Tensor:
    empty = ~keep.any(-1, keepdim=True)
    out = scaled_dot_product_attention(q, k, v, attn_mask=keep | empty, scale=sm_scale)
    return out.masked_fill(empty, 0)


def grouped_sdpa(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, sm_scale: float) -> Tensor:
    """Run masked SDPA for q [R,G,T,D], where all G heads share k, v [R,N,...] and keep [R,T,N]."""
    k, v = (x.unsqueeze(1).expand(-1, q.shape[1], -1, -1) for x in (k, v))
    return kept_sdpa(q, k, v, keep.unsqueeze(1), sm_scale)


def masked_sdpa(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, sm_scale: float) -> Tensor:
    """Run masked SDPA for q [B,T,HQ,D], copying k, v [B,N,H,...] for each head; keep [T,N]."""
    group = q.shape[2] // k.shape[2]
    keys, values = (x.transpose(1, 2).repeat_interleave(group, 1) for x in (k, v))
    return kept_sdpa(q.transpose(1, 2), keys, values, keep, sm_scale).transpose(1, 2)


def refuse_mask(queries: int, keys: int) -> None:
    if queries * keys > MAX_MASK_ELEMENTS:
        raise Unsupported(f"it would need a dense mask of {queries} x {keys} elements")


@cache
def flex() -> tuple[Any, ModuleType]:
    """Return `flex_attention`, compiled, and its module. Raises `Unsupported` before torch 2.5."""
    try:
        from torch.nn.attention import flex_attention as module
    except ImportError as error:
        raise Unsupported(f"torch {torch.__version__} has no flex_attention") from error
    # With `fullgraph`, code that cannot be compiled fails, and is never timed uncompiled.
    return torch.compile(module.flex_attention, dynamic=False, fullgraph=True), module


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def check_head_dims(q: Tensor, v: Tensor) -> None:
    if not (is_power_of_two(q.shape[-1]) and is_power_of_two(v.shape[-1])):
        raise Unsupported("flex_attention needs head dims that are powers of two")


def flex_attend(q: Tensor, k: Tensor, v: Tensor, block_mask: Any, sm_scale: float) -> Tensor:
    check_head_dims(q, v)
    out = flex()[0](
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        block_mask=block_mask,
        scale=sm_scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)


def block_mask(
    tiles: Tensor, mask_mod: Any, seq_lengths: tuple[int, int], *, backward: bool
) -> Any:
    """Return the BlockMask that attends in `tiles` only, to the keys that `mask_mod` allows.

    `tiles` is bool [B,H,query tiles,key tiles]. `backward` says whether a backward will read it.
    """
    make = flex()[1].BlockMask.from_kv_blocks
    if not accepts(make, "seq_lengths"):
        raise Unsupported(f"torch {torch.__version__} has no seq_lengths in BlockMask")
    halves = not backward and accepts(make, "compute_q_blocks")
    # For each query tile, the numbers of its key tiles come first.
    order = tiles.to(torch.int32).argsort(dim=-1, descending=True, stable=True)
    return make(
        tiles.sum(-1, dtype=torch.int32),
        order.to(torch.int32),
        BLOCK_SIZE=TILE,
        mask_mod=mask_mod,
        seq_lengths=seq_lengths,
        **({"compute_q_blocks": False} if halves else {}),
    )
