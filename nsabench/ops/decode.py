"""decode: one token of Native Sparse Attention against its caches, whole or one branch alone.

q [B,HQ,D]; caches k [B,H,S,D], v [B,H,S,Dv], the token itself at S - 1; complete compressed keys
k_cmp [B,H,Nc,D], v_cmp [B,H,Nc,Dv]; gates [B,HQ,3]; ranges int32 [B,H,n,2] -> out [B,HQ,Dv]. The
distribution says what is asked (arXiv 2502.11089, section 3.2 and 3.3):

- total: gates[0] cmp + gates[1] sel + gates[2] win, the selection made from the block scores;
- cmp: attention over all compressed keys; sel: over the spans `ranges`; win: over the last keys;
- dense: over the whole cache, what a decoder without NSA does.

Each is its own work. In what is drawn the blocks with the highest scores stand out, so that
rounding cannot decide which are selected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import model_validator

from nsabench.model.vocabulary import DType
from nsabench.ops import _attention, _draws
from nsabench.ops._banded import HeadsShape
from nsabench.ops._draws import Ints
from nsabench.ops.contract import Inputs, Op, Shape, Size, Work, dv_is_d

if TYPE_CHECKING:
    from torch import Tensor

BRANCHES = ("total", "cmp", "sel", "win", "dense")
LOCAL = 2  # blocks before and with the token that are always selected, as is the first
LOUDNESS = 20.0  # of a compressed key that is meant to be selected, along the sum of its queries


class DecodeShape(HeadsShape):
    """B tokens, each with a cache of S tokens; HQ query heads on H key heads, head dims D (q, k)
    and Dv (v; D unless given); compressed keys of `block` tokens, one every `stride`; `n_selected`
    blocks of `block_size` tokens; `window` keys."""

    B: Size
    S: Size
    block: Size
    stride: Size
    block_size: Size
    n_selected: Size
    window: Size

    _dv = model_validator(mode="before")(dv_is_d)

    @model_validator(mode="after")
    def _fits(self) -> DecodeShape:
        self.check_heads()
        if self.block > self.S:
            raise ValueError(f"S={self.S} tokens are fewer than those of one key, {self.block=}")
        if self.block % self.stride or self.block_size % self.stride:
            raise ValueError(f"{self.stride=} does not divide {self.block=} and {self.block_size=}")
        if self.n_selected <= LOCAL:
            raise ValueError(f"{self.n_selected=} does not hold the first and {LOCAL} local blocks")
        return self

    @property
    def compressed(self) -> int:
        return (self.S - self.block) // self.stride + 1

    @property
    def blocks(self) -> int:
        return -(-self.S // self.block_size)

    @property
    def selected(self) -> int:
        """Tokens that the selected blocks hold; the last block ends with the token."""
        if self.n_selected >= self.blocks:
            return self.S
        return self.n_selected * self.block_size - self.blocks * self.block_size + self.S

    def reads(self) -> dict[str, int]:
        """Keys that a head reads in each branch."""
        reads = {
            "cmp": self.compressed,
            "sel": self.selected,
            "win": min(self.window, self.S),
        }
        return {"total": sum(reads.values()), **reads, "dense": self.S}


class Decode(Op):
    name = "decode"
    arguments = ("q", "k", "v", "k_cmp", "v_cmp", "gates", "ranges")
    options = ("branch", "block", "stride", "block_size", "n_selected", "window", "sm_scale")
    shape_model = DecodeShape
    length_axis = "S"
    distributions = BRANCHES
    threshold_per_distribution = True

    def length(self, shape: Shape) -> int:
        assert isinstance(shape, DecodeShape)
        return shape.S

    def work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        """Every key and value that is read once; what selection itself reads is read already."""
        assert isinstance(shape, DecodeShape)
        widths = shape.D + shape.Dv
        reads = shape.B * shape.H * shape.reads()[distribution]
        if distribution == "total":
            # What a chosen block and the window share needs to be read only once.
            begin = _chosen(shape, seed) * shape.block_size
            end = np.minimum(begin + shape.block_size, shape.S)
            near = np.maximum(begin, shape.S - shape.window)
            reads -= int(np.maximum(end - near, 0).sum())
        heads = shape.B * shape.HQ
        elements = (heads + reads) * widths
        if distribution == "total":
            elements += heads * 3
        ranges = 8 * shape.B * shape.H * shape.n_selected if distribution == "sel" else 0
        flops = 2 * heads * shape.reads()[distribution] * widths
        return Work(elements * dtype.itemsize + ranges, flops)

    def draw(self, shape: Shape, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        import torch

        assert isinstance(shape, DecodeShape)
        normal = _draws.normal(dtype, device, seed)
        b, h = shape.B, shape.H
        q = normal(b, shape.HQ, shape.D)
        # Branches that do not touch a cache are given an empty one.
        tokens = shape.S if distribution != "cmp" else 0
        keys = shape.compressed if distribution in ("total", "cmp") else 0
        k, v = normal(b, h, tokens, shape.D), normal(b, h, tokens, shape.Dv)
        k_cmp, v_cmp = normal(b, h, keys, shape.D), normal(b, h, keys, shape.Dv)
        chosen = torch.from_numpy(_chosen(shape, seed)).to(device)
        if keys:
            _make_loud(q, k_cmp, chosen, shape)
        start = (chosen * shape.block_size).to(torch.int32)
        end = (start + shape.block_size).clamp_(max=shape.S)
        return Inputs(
            {
                "q": q,
                "k": k,
                "v": v,
                "k_cmp": k_cmp,
                "v_cmp": v_cmp,
                "gates": torch.sigmoid(normal(b, shape.HQ, 3)),
                "ranges": torch.stack([start, end], -1),
            },
            {
                "branch": distribution,
                "block": shape.block,
                "stride": shape.stride,
                "block_size": shape.block_size,
                "n_selected": shape.n_selected,
                "window": shape.window,
                "sm_scale": shape.D**-0.5,
            },
        )

    def oracle(self, inputs: Inputs) -> Tensor:
        import torch

        t, options = inputs.tensors, inputs.options
        branch = options["branch"]
        tokens = t["k"].shape[2]
        at = torch.arange(tokens, device=t["q"].device)
        if branch == "cmp":
            return _attend(t["q"], t["k_cmp"], t["v_cmp"], options)[0]
        if branch == "dense":
            return _attend(t["q"], t["k"], t["v"], options)[0]
        if branch == "sel":
            return _attend(t["q"], t["k"], t["v"], options, _within(t["ranges"], at))[0]
        first = max(tokens - options["window"], 0)
        window = _attend(t["q"], t["k"][:, :, first:], t["v"][:, :, first:], options)[0]
        if branch == "win":
            return window
        compressed, weights = _attend(t["q"], t["k_cmp"], t["v_cmp"], options)
        keep = select(weights, tokens, options)[..., at // options["block_size"]]
        selected = _attend(t["q"], t["k"], t["v"], options, keep)[0]
        gates = t["gates"].double().unsqueeze(-1)
        return gates[:, :, 0] * compressed + gates[:, :, 1] * selected + gates[:, :, 2] * window


def _chosen(shape: DecodeShape, seed: int) -> Ints:
    """Blocks int64 [B,H,n]: the first, the local ones, and others at random; S where none is left.

    Forced blocks come last, in no order that an implementation could rely on.
    """
    rng = np.random.default_rng(seed)
    own = shape.blocks - 1
    forced = sorted({0, *range(max(own - LOCAL + 1, 0), own + 1)})
    free = np.setdiff1d(np.arange(shape.blocks), forced)
    count = min(shape.n_selected - len(forced), len(free))
    found = np.full((shape.B, shape.H, shape.n_selected), shape.blocks, dtype=np.int64)
    for row in np.ndindex(shape.B, shape.H):
        found[row][:count] = rng.permutation(free)[:count]
        found[row][count : count + len(forced)] = forced
    return found


def _make_loud(q: Tensor, k_cmp: Tensor, chosen: Tensor, shape: DecodeShape) -> None:
    """Turn one compressed key inside each chosen block, in place, to where its queries look."""
    import torch

    b, h = k_cmp.shape[:2]
    sums = q.view(b, h, -1, q.shape[2]).float().sum(2)
    loud = (LOUDNESS * sums / sums.norm(dim=-1, keepdim=True)).to(k_cmp.dtype)
    keys = chosen * (shape.block_size // shape.stride)
    inside = keys < k_cmp.shape[2]
    index = torch.where(inside, keys, torch.zeros_like(keys)).unsqueeze(-1)
    index = index.expand(-1, -1, -1, k_cmp.shape[3])
    k_cmp.scatter_(2, index, loud.unsqueeze(2).expand(-1, -1, keys.shape[2], -1))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """out [B,HQ,Dv] and the weights [B,H,HQ/H,L], a batch at a time; keep: bool [B,H,L]."""
    import torch

    out, weights = [], []
    for b in range(q.shape[0]):
        qd = q[b].double().view(k.shape[1], -1, q.shape[2])
        every = torch.ones((1, 1, 1), dtype=torch.bool, device=q.device)
        kept = every if keep is None else keep[b].unsqueeze(1)
        p = _attention.weights(qd, k[b].double(), options["sm_scale"], kept)
        out.append((p @ v[b].double()).flatten(0, 1))
        weights.append(p)
    return torch.stack(out), torch.stack(weights)


def _within(ranges: Tensor, at: Tensor) -> Tensor:
    """bool [B,H,S]: which tokens some span holds."""
    import torch

    inside = torch.zeros(*ranges.shape[:2], at.shape[0], dtype=torch.bool, device=at.device)
    for span in ranges.unbind(2):
        inside |= (at >= span[..., :1]) & (at < span[..., 1:])
    return inside


def select(weights: Tensor, tokens: int, options: dict[str, Any]) -> Tensor:
    """bool [B,H,blocks]: the blocks that weights [B,H,HQ/H,Nc] select (equations 9 to 12).

    The first block and the local ones, then the highest scores; of equal ones the lowest index.
    """
    import torch

    stride, size = options["stride"], options["block_size"]
    blocks = -(-tokens // size)
    of_group = weights.sum(2)
    scores = of_group.new_zeros(*of_group.shape[:2], blocks)
    for place in range(options["block"] // stride):
        block = (torch.arange(of_group.shape[2], device=weights.device) + place) * stride // size
        inside = block < blocks
        scores.index_add_(2, block[inside], of_group[..., inside])
    scores[..., 0] = float("inf")
    scores[..., max(blocks - LOCAL, 0) :] = float("inf")
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
    keep = torch.zeros_like(scores, dtype=torch.bool)
    return keep.scatter_(2, order[..., : options["n_selected"]], True)


OP = Decode()
