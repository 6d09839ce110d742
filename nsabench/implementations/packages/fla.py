"""flash-linear-attention: `parallel_nsa` of fla-core, selection by given indices.

Query-major forward, key-major backward over the queries of each block. It takes groups of 16 heads
or more; means of k and v are taken in any call of it, for a branch that is then not computed.
"""

from __future__ import annotations

from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.implementations.packages._calls import function
from nsabench.implementations.torch_attention.flex import wants_grad
from nsabench.ops.selection_blocks import OP
from nsabench.packages.catalogue import FLA

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
