"""What the ops of a decode step share: one token of Native Sparse Attention against its caches.

q [B,HQ,D]; caches k [B,H,S,D], v [B,H,S,Dv], the token itself at S - 1; out [B,HQ,Dv] (arXiv
2502.11089, sections 3.2 and 3.3). `decode_step` is the whole; `decode_compressed`,
`decode_selected` and `decode_window` are its branches; `decode_dense` is what it replaces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import model_validator

from nsabench.model.vocabulary import DType
from nsabench.ops import _attention
from nsabench.ops._attention import AttentionOp
from nsabench.ops._banded import HeadsShape
from nsabench.ops._contract import Shape, Size, Work, dv_is_d
from nsabench.ops._draws import Ints

if TYPE_CHECKING:
    from torch import Tensor

LOCAL = 2  # blocks before and with the token that are always selected, as is the first
LOUDNESS = 20.0  # of a compressed key that is meant to be selected, along the sum of its queries


@dataclass(frozen=True)
class DecodeSizes:
    """What a decode step is told beside its tensors: compressed keys of `block` tokens, one every
    `stride`; `n_selected` blocks of `block_size` tokens; `window` keys."""

    block: int
    stride: int
    block_size: int
    n_selected: int
    window: int


class CacheShape(HeadsShape):
    """B tokens, each with a cache of S tokens; HQ query heads on H key heads, head dims D (q, k)
    and Dv (v; D unless given)."""

    B: Size
    S: Size

    _dv = model_validator(mode="before")(dv_is_d)

    @model_validator(mode="after")
    def _heads_fit(self) -> CacheShape:
        self.check_heads()
        return self

    @property
    def reads(self) -> int:
        """Keys that a head reads."""
        return self.S


class DecodeOp(AttentionOp):
    """An op of one token; its lengths are those of the cache. A subclass says what is read."""

    length_axis: ClassVar[str] = "S"
    distributions: ClassVar[tuple[str, ...]] = ("random",)

    def length(self, shape: Shape) -> int:
        assert isinstance(shape, CacheShape)
        return shape.S

    def work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        """q and the output, and every key and value that is read, once."""
        assert isinstance(shape, CacheShape)
        widths, heads = shape.D + shape.Dv, shape.B * shape.HQ
        elements = (heads + shape.B * shape.H * shape.reads) * widths
        return Work(elements * dtype.itemsize, 2 * heads * shape.reads * widths)


def count_compressed(tokens: int, block: int, stride: int) -> int:
    """Complete compressed keys of so many tokens. Raises `ValueError` where there is none."""
    if block > tokens:
        raise ValueError(f"S={tokens} tokens are fewer than those of one key, {block=}")
    if block % stride:
        raise ValueError(f"{stride=} does not divide {block=}")
    return (tokens - block) // stride + 1


def count_selected(tokens: int, block_size: int, n_selected: int) -> int:
    """Tokens that the selected blocks hold; the last block ends with the token.

    Raises `ValueError` where the blocks that are always selected are too many.
    """
    if n_selected <= LOCAL:
        raise ValueError(f"{n_selected=} does not hold the first and {LOCAL} local blocks")
    blocks = -(-tokens // block_size)
    if n_selected >= blocks:
        return tokens
    return n_selected * block_size - blocks * block_size + tokens


def draw_blocks(
    rows: tuple[int, int], tokens: int, block_size: int, n_selected: int, seed: int
) -> Ints:
    """Blocks int64 [B,H,n]: the first, the local ones, and others at random; as many as there are
    blocks, that is, behind the last, where none is left.

    Forced blocks come last, in no order that an implementation could rely on.
    """
    rng = np.random.default_rng(seed)
    blocks = -(-tokens // block_size)
    own = blocks - 1
    forced = sorted({0, *range(max(own - LOCAL + 1, 0), own + 1)})
    free = np.setdiff1d(np.arange(blocks), forced)
    count = min(n_selected - len(forced), len(free))
    chosen = np.full((*rows, n_selected), blocks, dtype=np.int64)
    for row in np.ndindex(*rows):
        chosen[row][:count] = rng.permutation(free)[:count]
        chosen[row][count : count + len(forced)] = forced
    return chosen


def make_loud(q: Tensor, k_cmp: Tensor, chosen: Tensor, keys_a_block: int) -> None:
    """Turn one compressed key [B,H,Nc,D] inside each chosen block [B,H,n], in place, to where its
    queries look. keys_a_block: compressed keys that begin in a block."""
    import torch

    b, h = k_cmp.shape[:2]
    sums = q.view(b, h, -1, q.shape[2]).float().sum(2)
    loud = (LOUDNESS * sums / sums.norm(dim=-1, keepdim=True)).to(k_cmp.dtype)
    keys = chosen * keys_a_block
    inside = keys < k_cmp.shape[2]
    index = torch.where(inside, keys, torch.zeros_like(keys)).unsqueeze(-1)
    index = index.expand(-1, -1, -1, k_cmp.shape[3])
    k_cmp.scatter_(2, index, loud.unsqueeze(2).expand(-1, -1, keys.shape[2], -1))


def attend(
    q: Tensor, k: Tensor, v: Tensor, sm_scale: float, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """out [B,HQ,Dv] and the weights [B,H,HQ/H,L], a batch at a time; keep: bool [B,H,L]."""
    import torch

    out, weights = [], []
    for b in range(q.shape[0]):
        qd = q[b].double().view(k.shape[1], -1, q.shape[2])
        every = torch.ones((1, 1, 1), dtype=torch.bool, device=q.device)
        allowed = every if keep is None else keep[b].unsqueeze(1)
        p = _attention.weights(qd, k[b].double(), sm_scale, allowed)
        out.append((p @ v[b].double()).flatten(0, 1))
        weights.append(p)
    return torch.stack(out), torch.stack(weights)


def within(ranges: Tensor, token: Tensor) -> Tensor:
    """bool [B,H,S]: which tokens some span holds."""
    import torch

    inside = torch.zeros(*ranges.shape[:2], token.shape[0], dtype=torch.bool, device=token.device)
    for span in ranges.unbind(2):
        inside |= (token >= span[..., :1]) & (token < span[..., 1:])
    return inside


def select(weights: Tensor, tokens: int, sizes: DecodeSizes) -> Tensor:
    """bool [B,H,blocks]: the blocks that weights [B,H,HQ/H,Nc] select (equations 9 to 12).

    The first block and the local ones, then the highest scores; of equal ones the lowest index.
    """
    import torch

    blocks = -(-tokens // sizes.block_size)
    of_group = weights.sum(2)
    scores = of_group.new_zeros(*of_group.shape[:2], blocks)
    for place in range(sizes.block // sizes.stride):
        key = torch.arange(of_group.shape[2], device=weights.device)
        block = (key + place) * sizes.stride // sizes.block_size
        inside = block < blocks
        scores.index_add_(2, block[inside], of_group[..., inside])
    scores[..., 0] = float("inf")
    scores[..., max(blocks - LOCAL, 0) :] = float("inf")
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
    keep = torch.zeros_like(scores, dtype=torch.bool)
    return keep.scatter_(2, order[..., : sizes.n_selected], True)
