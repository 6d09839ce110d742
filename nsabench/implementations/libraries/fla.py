"""flash-linear-attention: `parallel_nsa` of fla-core, selection by given indices and by its own.

Query-major forward, key-major backward over the queries of each block. It takes groups of 16 heads
or more; means of k and v are taken in any call of it, also where the branch is not computed.

Its whole compresses blocks of `block_size` tokens without overlap and chooses among the same
blocks, which is the op `nsa_without_window`. With the window of flash-attn it is `nsa_attention`
where block, stride and block_size are one.
"""

from __future__ import annotations

from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.implementations.libraries import flash_attn
from nsabench.implementations.libraries._calls import function
from nsabench.implementations.torch_attention.flex import wants_grad
from nsabench.ops.selection_blocks import OP
from nsabench.packages.catalogue import FLA, FLASH_ATTN

PARALLEL = "fla.ops.nsa.parallel:parallel_nsa"
TAKES: tuple[str, ...] = ("q", "k", "v", "g_cmp", "g_slc", "g_swa", "block_indices")
TAKES += ("block_counts", "block_size", "window_size", "scale", "cu_seqlens")
LEAST_GROUP = 16
# A query without blocks is divided by zero, and a block that is given twice counts twice.
DISTRIBUTIONS = tuple(d for d in OP.distributions if d not in ("repeated", "empty_rows"))


def power_of_two(number: int) -> bool:
    """Whether it is one."""
    return number > 0 and number & (number - 1) == 0


def refuse_group(q: Tensor, k: Tensor) -> None:
    """Raises `Unsupported` for the groups of heads that its kernels do not take."""
    group = q.shape[2] // k.shape[2]
    if group < LEAST_GROUP or not power_of_two(group):
        raise Unsupported(f"fla-core takes groups of 16, 32, … heads, and this is one of {group}")


@implementation(
    op="selection_blocks",
    name="fla",
    role="baseline",
    devices=("cuda",),
    distributions=DISTRIBUTIONS,
    package=FLA,
    compiled_by="triton",
)
def fla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> Tensor:
    """`parallel_nsa` with `block_indices`, its other branches left out."""
    attend = function(FLA, PARALLEL, *TAKES)
    refuse_group(q, k)
    slots = block_indices.shape[-1]
    if wants_grad(q, k, v) and not power_of_two(slots):
        raise Unsupported(f"the backward of fla-core takes 1, 2, 4, … blocks a query, not {slots}")
    out: Tensor = attend(
        q=q,
        k=k,
        v=v,
        g_cmp=None,
        g_slc=None,
        g_swa=None,
        block_indices=block_indices.long(),
        block_counts=slots,
        block_size=block_size,
        window_size=0,
        scale=sm_scale,
        cu_seqlens=None if cu_seqlens is None else cu_seqlens.long(),
    )
    return out


def _whole(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Tensor,
    cu_seqlens: Tensor | None,
    block_size: int,
    n_selected: int,
    sm_scale: float,
    window: int = 0,
) -> Tensor:
    """gates [B,T,HQ,2], and a third with a window."""
    attend = function(FLA, PARALLEL, *TAKES)
    refuse_group(q, k)
    if not power_of_two(block_size):
        raise Unsupported(f"fla-core chooses blocks of 16, 32, 64, … tokens, not of {block_size}")
    if not power_of_two(n_selected):
        raise Unsupported(f"fla-core chooses 1, 2, 4, … blocks a query, not {n_selected}")
    if block_size < 2 * n_selected:
        raise Unsupported(f"fla-core chooses at most {block_size // 2} blocks of {block_size}")
    out: Tensor = attend(
        q=q,
        k=k,
        v=v,
        g_cmp=gates[..., 0],
        g_slc=gates[..., 1],
        g_swa=gates[..., 2] if window else None,
        block_indices=None,
        block_counts=n_selected,
        block_size=block_size,
        window_size=window,
        scale=sm_scale,
        cu_seqlens=None if cu_seqlens is None else cu_seqlens.long(),
    )
    return out


@implementation(
    op="nsa_without_window",
    name="fla_whole",
    role="baseline",
    devices=("cuda",),
    package=FLA,
    compiled_by="triton",
)
def fla_whole(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    block_size: int,
    n_selected: int,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """`parallel_nsa` with gates of its compression and its selection, and no window."""
    return _whole(q, k, v, gates, cu_seqlens, block_size, n_selected, sm_scale)


@implementation(
    op="nsa_attention",
    name="fla_whole",
    role="baseline",
    devices=("cuda",),
    package=FLA,
    compiled_by="triton",
)
def fla_whole_with_window(
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
    """The same with its third gate, of a window by flash-attn, on the sizes that are its own."""
    function(FLA, PARALLEL, *TAKES)
    if not block == stride == block_size:
        raise Unsupported(
            f"fla-core compresses blocks of {block_size} without overlap (op nsa_without_window), "
            f"and here a key is of {block} tokens, one every {stride}"
        )
    function(FLASH_ATTN, flash_attn.PLAIN, *flash_attn.TENSORS, "window_size")
    if abs(sm_scale - q.shape[3] ** -0.5) > 1e-6 * sm_scale:
        raise Unsupported("the window of fla-core scales by 1/sqrt(D), whatever it is told")
    return _whole(q, k, v, gates, cu_seqlens, block_size, n_selected, sm_scale, window)
