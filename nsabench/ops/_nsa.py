"""Native Sparse Attention in float64, some queries of one key head at a time: the three branches,
which blocks are selected, and whether that choice hangs on rounding (arXiv 2502.11089, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsabench.ops import _attention, _sampled
from nsabench.ops._contract import Inputs
from nsabench.ops._decode import LOCAL
from nsabench.ops._sequences import Sequences

if TYPE_CHECKING:
    from torch import Tensor

# What is gathered for some queries, and their weights: half a GiB in float64.
CHUNK_ELEMENTS = 1 << 26
# The n-th and the next score are told apart where they differ by more than this part of the n-th.
# A compressed key is rounded to the format, so a logit is off by a third of its spacing at 1 times
# the size of the key; a score sums the weights of several keys and heads, whose errors are random:
# on inputs as they are drawn they are off by up to 2.8e-3 in bfloat16 and 3.7e-4 in float16, of
# which this is twice.
RESOLVED = {"torch.float16": 7.5e-4, "torch.bfloat16": 6e-3, "torch.float32": 1e-5}
# Where a block is one compressed key, a score sums the weights of that one alone. Seen: 7.5e-3 and
# 9.3e-4 for a group of 16, whose queries are rounded once they are scaled.
OF_ONE_KEY = 2
LEAST_SCORE = 1e-30  # what is smaller may be zero in float32


@dataclass(frozen=True)
class Branch:
    """Some queries on the keys of a branch: weights p [n,G,L] on k [n,L,D] or [L,D], v likewise."""

    p: Tensor
    k: Tensor
    v: Tensor
    keys: Tensor  # int64 [n,L] or [L]: where these are among those of the row

    @property
    def out(self) -> Tensor:
        return self.p @ self.v


@dataclass(frozen=True)
class Piece:
    """Some queries of a sequence and key head, q [n,G,D]; where they lie in the inputs' q; their
    branches; bool [n]: whose selection hangs on rounding."""

    rows: tuple[int, Tensor, slice]
    head: int
    start: int
    q: Tensor
    gates: Tensor
    compressed: Branch
    selected: Branch
    window: Branch
    hangs: Tensor
    ranked: Tensor  # float64 [n,blocks]: scores; inf where a block is forced, -inf behind the query

    @property
    def branches(self) -> tuple[Branch, Branch, Branch]:
        return self.compressed, self.selected, self.window


def means(x: Tensor, block: int, stride: int) -> Tensor:
    """[L,D] -> [Nc,D], the mean of each `block` tokens, one every `stride`, in float64."""
    if x.shape[0] < block:
        return x[:0].double()
    mean: Tensor = x.double().unfold(0, block, stride).mean(-1)
    return mean


def block_scores(weights: Tensor, blocks: int, block: int, stride: int, block_size: int) -> Tensor:
    """[n,blocks] of weights [n,G,Nc], summed over the group: each block gets those of the keys that
    share tokens with it, times the strides they share (equations 9 and 10)."""
    import torch

    of_group = weights.sum(1)
    scores = of_group.new_zeros(of_group.shape[0], blocks)
    key = torch.arange(of_group.shape[1], device=weights.device)
    for place in range(block // stride):
        touched = (key + place) * stride // block_size
        inside = touched < blocks
        scores.index_add_(1, touched[inside], of_group[:, inside])
    return scores


def rank(scores: Tensor, position: Tensor, block_size: int) -> Tensor:
    """Scores [n,blocks] with inf for the first block and the local ones, which are selected in any
    case, and -inf for those behind the query."""
    import torch

    own = (position // block_size).unsqueeze(1)
    index = torch.arange(scores.shape[1], device=scores.device)
    ranked = scores.masked_fill((index == 0) | (index > own - LOCAL), float("inf"))
    return ranked.masked_fill(index > own, float("-inf"))


def choose(ranked: Tensor, count: int, resolved: float) -> tuple[Tensor, Tensor]:
    """int64 [n,count], -1 where a query has fewer blocks, and bool [n]: whose choice hangs on
    rounding."""
    import torch

    values, order = torch.sort(ranked, dim=1, descending=True, stable=True)
    chosen = order[:, :count].masked_fill(values[:, :count] == float("-inf"), -1)
    if ranked.shape[1] <= count:
        return chosen, torch.zeros_like(chosen[:, 0], dtype=torch.bool)
    last, following = values[:, count - 1], values[:, count]
    told = (last - following) > resolved * last.clamp_min(LEAST_SCORE)
    free = following == float("-inf")  # there is no other block to choose
    return chosen, ~(told | free | (last == float("inf")))


def resolved(inputs: Inputs) -> float:
    """By which part of the n-th score the next one must differ, to be told apart."""
    sizes = inputs.options
    alone = sizes["block"] == sizes["stride"] == sizes["block_size"]
    return RESOLVED[str(inputs.tensors["q"].dtype)] * (OF_ONE_KEY if alone else 1)


def pieces(inputs: Inputs, looked_at: Tensor | None = None) -> Iterator[Piece]:
    """All that is computed of the queries that are looked at (`_sampled.tokens`)."""
    q, k, v = (inputs.tensors[name] for name in ("q", "k", "v"))
    options = inputs.options
    group, width = q.shape[2] // k.shape[2], k.shape[3] + v.shape[3]
    tokens = _sampled.tokens(inputs) if looked_at is None else looked_at
    for batch, start, end in Sequences.spans(inputs):
        first = batch * q.shape[1]
        own = tokens[(tokens >= first + start) & (tokens < first + end)] - first
        complete = max(0, (end - start - options["block"]) // options["stride"] + 1)
        keys = options["n_selected"] * options["block_size"] + min(options["window"], end - start)
        step = max(1, CHUNK_ELEMENTS // (keys * width + 3 * group * (complete + keys)))
        for head in range(k.shape[2] if own.numel() else 0):
            kh, vh = k[batch, start:end, head], v[batch, start:end, head]
            cmp = tuple(means(x, options["block"], options["stride"]) for x in (kh, vh))
            heads = slice(head * group, (head + 1) * group)
            for some in own.split(step):
                yield _piece(inputs, (batch, some, heads), head, start, kh, vh, cmp)


def _piece(
    inputs: Inputs,
    rows: tuple[int, Tensor, slice],
    head: int,
    start: int,
    k: Tensor,
    v: Tensor,
    cmp: tuple[Tensor, ...],
) -> Piece:
    import torch

    o = inputs.options
    block, stride, size, scale = o["block"], o["stride"], o["block_size"], o["sm_scale"]
    q, position = inputs.tensors["q"][rows].double(), rows[1] - start
    gates = inputs.tensors["gates"][rows].double()
    index = torch.arange(cmp[0].shape[0], device=q.device)
    keep = index * stride + block <= position.unsqueeze(1) + 1
    p = _attention.weights(q, cmp[0], scale, keep.unsqueeze(1))
    compressed = Branch(p, cmp[0], cmp[1], index)
    blocks = -(-k.shape[0] // size)
    scores = block_scores(p, blocks, block, stride, size)
    ranked = rank(scores, position, size)
    chosen, hangs = choose(ranked, o["n_selected"], resolved(inputs))
    of_block = chosen.unsqueeze(-1) * size + torch.arange(size, device=q.device)
    selected = _gathered(q, k, v, of_block.flatten(1), position, scale)
    near = position.unsqueeze(1) - torch.arange(min(o["window"], k.shape[0]), device=q.device)
    window = _gathered(q, k, v, near, position, scale)
    return Piece(rows, head, start, q, gates, compressed, selected, window, hangs, ranked)


def _gathered(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, position: Tensor, scale: float
) -> Branch:
    """Queries [n,G,D] on keys [n,L] of their own, of which those that are there and not behind the
    query count."""
    keep = (keys >= 0) & (keys <= position.unsqueeze(1))
    keys = keys.clamp(0, k.shape[0] - 1)
    kd, vd = k[keys].double(), v[keys].double()
    return Branch(_attention.weights(q, kd, scale, keep.unsqueeze(1)), kd, vd, keys)


def accumulate(piece: Piece, grad_out: Tensor, inputs: Inputs, grads: dict[str, Any]) -> None:
    """Add what the queries of a piece give to the gradients: dq and dgates are theirs alone."""
    import torch

    scale, options = inputs.options["sm_scale"], inputs.options
    do, batch, head = grad_out[piece.rows].double(), piece.rows[0], piece.head
    outs = [branch.out for branch in piece.branches]
    dgates = [(do * out).sum(-1) for out in outs]
    dq = 0.0
    for place, branch in enumerate(piece.branches):
        of_branch = do * piece.gates[..., place : place + 1]
        shared = branch.k.dim() == 2
        # Keys that all queries share are a batch of one; others are a batch a query.
        p, q, g = (x.flatten(0, 1) if shared else x for x in (branch.p, piece.q, of_branch))
        of_q, of_k, of_v = _attention.gradients(p, q, branch.k, branch.v, g, scale)
        dq = dq + of_q.view_as(piece.q)
        for name, of_x in (("k", of_k), ("v", of_v)):
            into = grads[name][batch, :, head]
            if not shared:
                into.index_add_(0, (branch.keys + piece.start).flatten(), of_x.flatten(0, 1))
                continue
            first = branch.keys * options["stride"] + piece.start
            tokens = first.unsqueeze(1) + torch.arange(options["block"], device=first.device)
            of_each = (of_x / options["block"]).unsqueeze(1).expand(*tokens.shape, -1)
            into.index_add_(0, tokens.flatten(), of_each.flatten(0, 1))
    hangs = piece.hangs.view(-1, 1, 1)
    grads["q"][piece.rows] = dq.masked_fill(hangs, float("inf"))  # type: ignore[attr-defined]
    grads["gates"][piece.rows] = torch.stack(dgates, -1).masked_fill(hangs, float("inf"))
