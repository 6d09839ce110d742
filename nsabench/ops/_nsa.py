"""Native Sparse Attention in float64, some queries of one key head at a time.

See arXiv 2502.11089, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsabench.ops import _attention, _sampled
from nsabench.ops._contract import Inputs, Legal

if TYPE_CHECKING:
    from torch import Tensor

LOCAL = 2  # blocks up to the query's own that are always selected, as is the first
# What is gathered for some queries, and their weights: half a GiB in float64.
CHUNK_ELEMENTS = 1 << 26
# Two scores are distinct if they differ by more than this share. It is twice the largest error of
# scores on drawn inputs: 2.8e-3 in bfloat16 and 3.7e-4 in float16.
RESOLVED = {"torch.float16": 7.5e-4, "torch.bfloat16": 6e-3, "torch.float32": 1e-5}
OF_ONE_KEY = 2  # The share is twice as large if a block is one compressed key.
LEAST_SCORE = 1e-30  # A smaller score may be zero in float32.
# A block is doubtful if its score is within twice the share of the last selected score.
IN_DOUBT = 2.0
LOGITS = 1 << 24  # in float64 at a time, where a selection is in doubt


@dataclass(frozen=True)
class Branch:
    p: Tensor
    k: Tensor
    v: Tensor
    keys: Tensor  # int64 [n,L] or [L]: the places of these keys in the row

    @property
    def out(self) -> Tensor:
        return self.p @ self.v


@dataclass(frozen=True)
class Piece:
    """Some queries q [n,G,D] of a sequence and key head.

    rows: their place in the inputs' q. hangs: bool [n], whether rounding decides the selection.
    ranked: float64 [n,blocks], scores; inf where a block is forced, -inf behind the query.
    """

    rows: tuple[int, Tensor, slice]
    head: int
    start: int
    q: Tensor
    gates: Tensor
    compressed: Branch
    selected: Branch
    window: Branch
    hangs: Tensor
    ranked: Tensor

    @property
    def branches(self) -> tuple[Branch, Branch, Branch]:
        return self.compressed, self.selected, self.window


def means(x: Tensor, block: int, stride: int) -> Tensor:
    """Compute the mean of each `block` tokens, one every `stride`: [L,D] -> float64 [Nc,D]."""
    if x.shape[0] < block:
        return x[:0].double()
    return x.double().unfold(0, block, stride).mean(-1)


def block_scores(weights: Tensor, blocks: int, block: int, stride: int, block_size: int) -> Tensor:
    """Compute scores [n,blocks] of weights [n,G,Nc], summed over the group (equations 9 and 10)."""
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
    """Set scores [n,blocks] to inf for forced blocks, and to -inf behind the query."""
    import torch

    own = (position // block_size).unsqueeze(1)
    index = torch.arange(scores.shape[1], device=scores.device)
    ranked = scores.masked_fill((index == 0) | (index > own - LOCAL), float("inf"))
    return ranked.masked_fill(index > own, float("-inf"))


def choose(ranked: Tensor, count: int, resolved: float) -> tuple[Tensor, Tensor]:
    """Return the selected blocks, int64 [n,count], and whether rounding decides the choice.

    -1: a query has fewer blocks. The lowest index of equal scores is selected.
    """
    import torch

    values, order = torch.sort(ranked, dim=1, descending=True, stable=True)
    chosen = order[:, :count].masked_fill(values[:, :count] == float("-inf"), -1)
    if ranked.shape[1] <= count:
        return chosen, torch.zeros_like(chosen[:, 0], dtype=torch.bool)
    last, following = values[:, count - 1], values[:, count]
    distinct = (last - following) > resolved * last.clamp_min(LEAST_SCORE)
    free = following == float("-inf")  # no other block can be chosen
    return chosen, ~(distinct | free | (last == float("inf")))


def resolved(inputs: Inputs) -> float:
    sizes = inputs.options
    alone = sizes["block"] == sizes["stride"] == sizes["block_size"]
    return RESOLVED[str(inputs.tensors["q"].dtype)] * (OF_ONE_KEY if alone else 1)


def pieces(inputs: Inputs, sampled: Tensor | None = None) -> Iterator[Piece]:
    """Compute the sampled queries (`_sampled.tokens`, unless given)."""
    q, k, v = (inputs.tensors[name] for name in ("q", "k", "v"))
    options = inputs.options
    group, width = q.shape[2] // k.shape[2], k.shape[3] + v.shape[3]
    for batch, start, end, own in _sampled.by_sequence(inputs, sampled):
        complete = max(0, (end - start - options["block"]) // options["stride"] + 1)
        keys = options["n_selected"] * options["block_size"] + min(options["window"], end - start)
        step = max(1, CHUNK_ELEMENTS // (keys * width + 3 * group * (complete + keys)))
        for head in range(k.shape[2]):
            kh, vh = k[batch, start:end, head], v[batch, start:end, head]
            cmp = tuple(means(x, options["block"], options["stride"]) for x in (kh, vh))
            heads = slice(head * group, (head + 1) * group)
            for some in own.split(step):
                yield _compute_piece(inputs, (batch, some, heads), head, start, kh, vh, cmp)


def _compute_piece(
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
    scores = block_scores(p, -(-k.shape[0] // size), block, stride, size)
    ranked = rank(scores, position, size)
    chosen, hangs = choose(ranked, o["n_selected"], resolved(inputs))
    of_block = chosen.unsqueeze(-1) * size + torch.arange(size, device=q.device)
    selected = _gather_keys(q, k, v, of_block.flatten(1), position, scale)
    near = position.unsqueeze(1) - torch.arange(min(o["window"], k.shape[0]), device=q.device)
    window = _gather_keys(q, k, v, near, position, scale)
    return Piece(rows, head, start, q, gates, compressed, selected, window, hangs, ranked)


def _gather_keys(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, position: Tensor, scale: float
) -> Branch:
    keep = (keys >= 0) & (keys <= position.unsqueeze(1))
    keys = keys.clamp(0, k.shape[0] - 1)
    kd, vd = k[keys].double(), v[keys].double()
    return Branch(_attention.weights(q, kd, scale, keep.unsqueeze(1)), kd, vd, keys)


def accumulate(piece: Piece, grad_out: Tensor, inputs: Inputs, grads: dict[str, Any]) -> None:
    """Add the share of a piece's queries to the gradients."""
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


def legal(inputs: Inputs, oracle: Tensor) -> Legal | None:
    """Return bounds of the rows that an oracle of `nsa_attention` leaves out, if there are any.

    The certain blocks A have the output o_A and the weight Z_A. A doubtful block b moves the output
    towards its own output o_b by at most Z_b / (Z_A + Z_b).
    """
    import torch

    tokens = oracle[..., 0].isinf().any(-1).flatten().nonzero().flatten()
    found = list(_find_bounds(inputs, tokens))
    if not found:
        return None
    rows, lo, hi = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))
    order = rows.argsort()
    return Legal(rows[order], lo[order], hi[order])


def _find_bounds(inputs: Inputs, tokens: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    import torch

    length, heads = inputs.tensors["q"].shape[1:3]
    for piece in pieces(inputs, tokens):
        some = piece.hangs.nonzero().flatten()
        if not some.numel():
            continue
        batch, places, own = piece.rows
        of_head = torch.arange(own.start, own.stop, device=places.device)
        index = (batch * length + places[some]).unsqueeze(1) * heads + of_head
        gates = piece.gates[some].unsqueeze(-1)  # [n,G,3,1]
        low, high = _bound_selected(inputs, piece, some)
        exact = gates[..., 0, :] * piece.compressed.out[some]
        exact += gates[..., 2, :] * piece.window.out[some]
        ends = gates[..., 1, :] * low, gates[..., 1, :] * high
        yield (
            index.flatten(),
            (exact + torch.minimum(*ends)).flatten(0, 1),
            (exact + torch.maximum(*ends)).flatten(0, 1),
        )


def _bound_selected(inputs: Inputs, piece: Piece, some: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    batch, places, _ = piece.rows
    size, scale = inputs.options["block_size"], inputs.options["sm_scale"]
    certain, doubtful = _sort_blocks_by_doubt(piece, some, inputs)
    blocks = certain.shape[1]
    k, v = (
        inputs.tensors[name][batch, piece.start : piece.start + blocks * size, piece.head].double()
        for name in ("k", "v")
    )
    missing = blocks * size - k.shape[0]  # of the last block, or of the sequence
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, missing)) for x in (k, v))
    position = places[some] - piece.start
    found = []
    for part in torch.arange(some.numel()).split(max(1, LOGITS // (k.shape[0] * piece.q.shape[1]))):
        q = piece.q[some[part]]
        seen = torch.arange(k.shape[0], device=q.device) <= position[part].unsqueeze(1)
        wanted = (certain | doubtful)[part].repeat_interleave(size, 1) & seen
        p = _attention.weights(q, k, scale, wanted.unsqueeze(1))  # [n,G,L]
        by_block = p.unflatten(2, (blocks, size))
        weight = by_block.sum(-1)  # [n,G,blocks]
        out = torch.einsum("ngbs,bsd->ngbd", by_block, v.unflatten(0, (blocks, size)))
        of_a = certain[part].view(-1, 1, blocks, 1)
        z_a = (weight.unsqueeze(-1) * of_a).sum(2)
        o_a = (out * of_a).sum(2) / z_a
        z_b = weight.unsqueeze(-1) * doubtful[part].view(-1, 1, blocks, 1)
        # Z_b (o_b - o_A) / (Z_A + Z_b), where Z_b o_b is what the block adds.
        moves = (out * (z_b > 0) - z_b * o_a.unsqueeze(2)) / (z_a.unsqueeze(2) + z_b)
        found.append((o_a + moves.clamp(max=0).sum(2), o_a + moves.clamp(min=0).sum(2)))
    low, high = (torch.cat(parts) for parts in zip(*found, strict=True))
    return low, high


def _sort_blocks_by_doubt(piece: Piece, some: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return the blocks that all legal choices hold, and that some hold: bool [n,blocks]."""
    import torch

    ranked, count = piece.ranked[some], inputs.options["n_selected"]
    values = ranked.sort(1, descending=True).values
    last, following = values[:, count - 1 : count], values[:, count : count + 1]
    near = IN_DOUBT * resolved(inputs) * last.clamp_min(LEAST_SCORE)
    certain = ranked > following + near
    doubtful = ~certain & (ranked >= last - near) & torch.isfinite(ranked)
    return certain, doubtful
