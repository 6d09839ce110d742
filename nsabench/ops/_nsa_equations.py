"""Define the sizes and, in float64, the equations of Native Sparse Attention (arXiv 2502.11089)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import model_validator

from nsabench.ops._attention import attend_to, weights
from nsabench.ops._op import Shape, Size

if TYPE_CHECKING:
    from torch import Tensor

LOCAL = 2  # how many of the last blocks are always selected, besides the first block
# Two scores are distinct if they differ by more than this fraction. It is about twice the largest
# relative error of scores on drawn inputs: 2.8e-3 in bfloat16, 3.7e-4 in float16.
RESOLVED = {"torch.float16": 7.5e-4, "torch.bfloat16": 6e-3, "torch.float32": 1e-5}
OF_ONE_KEY = 2  # the fraction is twice as large if a block is one compressed key
LEAST_SCORE = 1e-30  # a smaller score may be zero in float32


class CompressionSizes(Shape):
    """A compressed key stands for `block` tokens, and one begins every `stride` tokens."""

    block: Size = 32
    stride: Size = 16


class SelectionSizes(Shape):
    """A query selects `n_selected` blocks of `block_size` tokens."""

    block_size: Size = 64
    n_selected: Size = 16

    @model_validator(mode="after")
    def _forced_blocks_fit(self) -> SelectionSizes:
        if self.n_selected <= LOCAL:
            raise ValueError(f"{self.n_selected=} does not hold the first and {LOCAL} local blocks")
        return self


class NsaSizes(SelectionSizes, CompressionSizes):
    """A query also sees the last `window` keys."""

    window: Size = 512

    @model_validator(mode="after")
    def _strides_fit(self) -> NsaSizes:
        if self.block % self.stride or self.block_size % self.stride:
            raise ValueError(f"{self.stride=} does not divide {self.block=} and {self.block_size=}")
        return self


def means(x: Tensor, block: int, stride: int) -> Tensor:
    """Compute means of `block` tokens from every `stride`-th token: [L,D] -> float64 [Nc,D]."""
    if x.shape[0] < block:
        return x[:0].double()
    return x.double().unfold(0, block, stride).mean(-1)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    position: Tensor,
    *,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float,
) -> Tensor:
    """Sum the gated branches for q [n,G,D] at positions [n] of k [L,D]. Two gates: no window."""
    import torch

    p = compressed_weights(q, k_cmp, position, block, stride, sm_scale)
    ranked = rank_blocks(p.detach(), position, k.shape[0], block, stride, block_size)
    chosen = _choose(ranked, n_selected)
    selected = chosen.unsqueeze(-1) * block_size + torch.arange(block_size, device=q.device)
    near = position.unsqueeze(1) - torch.arange(min(window, k.shape[0]), device=q.device)
    outs = [p @ v_cmp]
    for keys in (selected.flatten(1), near):
        keep = (keys >= 0) & (keys <= position.unsqueeze(1))
        outs.append(attend_to(q, k, v, sm_scale, keys, keep))
    return sum(g.unsqueeze(-1) * out for g, out in zip(gates.unbind(-1), outs, strict=False))


def compressed_weights(
    q: Tensor, k_cmp: Tensor, position: Tensor, block: int, stride: int, sm_scale: float
) -> Tensor:
    import torch

    index = torch.arange(k_cmp.shape[0], device=q.device)
    keep = index * stride + block <= position.unsqueeze(1) + 1
    return weights(q, k_cmp, sm_scale, keep.unsqueeze(1))


def rank_blocks(
    p: Tensor, position: Tensor, tokens: int, block: int, stride: int, block_size: int
) -> Tensor:
    """Sum weights [n,G,Nc] over the group and over each block's keys (equations 9 and 10).

    In the scores [n,blocks], always selected blocks have inf, and blocks after the query -inf.
    """
    import torch

    of_group = p.sum(1)
    blocks = -(-tokens // block_size)
    scores = of_group.new_zeros(of_group.shape[0], blocks)
    key = torch.arange(of_group.shape[1], device=p.device)
    for place in range(block // stride):
        touched = (key + place) * stride // block_size
        inside = touched < blocks
        scores.index_add_(1, touched[inside], of_group[:, inside])
    own = (position // block_size).unsqueeze(1)
    index = torch.arange(blocks, device=p.device)
    scores.masked_fill_((index == 0) | (index > own - LOCAL), float("inf"))
    return scores.masked_fill_(index > own, float("-inf"))


def _choose(ranked: Tensor, count: int) -> Tensor:
    """Return the selected blocks of each query, int64 [n,count or fewer], -1 if it sees fewer."""
    import torch

    values, order = torch.sort(ranked, dim=1, descending=True, stable=True)
    return order[:, :count].masked_fill(values[:, :count] == float("-inf"), -1)


def depends_on_rounding(ranked: Tensor, count: int, resolved: float) -> Tensor:
    """Return for which queries the choice of `count` blocks depends on rounding: bool [n]."""
    import torch

    if ranked.shape[1] <= count:
        return torch.zeros_like(ranked[:, 0], dtype=torch.bool)
    last, following = ranked.sort(1, descending=True).values[:, count - 1 : count + 1].unbind(1)
    distinct = (last - following) > resolved * last.clamp_min(LEAST_SCORE)
    # Rounding changes no score of inf, -inf or zero.
    return ~(distinct | (last == float("inf")) | (following == float("-inf")) | (last == 0))
