"""PyTorch's own way through the whole without overlap and window: that of `nsa_attention`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nsabench import implementation
from nsabench.implementations.baselines.nsa_attention import attend, refuse_gathers


def attend_without_window(
    *tensors: Tensor, block_size: int, n_selected: int, **options: Any
) -> Tensor:
    """The op, or what a control makes of it: options as of `nsa_attention.attend`."""
    sizes: dict[str, Any] = {"block": block_size, "stride": block_size, "window": 0}
    sizes |= {"block_size": block_size, "n_selected": n_selected}
    whole: Callable[..., Tensor] = attend
    return whole(*tensors, **sizes, **options)


@implementation(
    op="nsa_without_window",
    name="torch_nsa",
    role="baseline",
    devices=("cuda", "cpu"),
    kind="general",
)
def torch_nsa(
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
    """Matrix products and gathers of torch in float32, 128 queries at a time."""
    refuse_gathers(q, k, v, gates, n_selected * block_size)
    given = (q, k, v, gates) if cu_seqlens is None else (q, k, v, gates, cu_seqlens)
    return attend_without_window(
        *given,
        block_size=block_size,
        n_selected=n_selected,
        sm_scale=sm_scale,
        max_seqlen=max_seqlen,
    )
