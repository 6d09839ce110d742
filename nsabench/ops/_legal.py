"""What a row may hold where more than one result is right: a box around all of them.

Where rounding decides which blocks a query selects, nobody can say what its row must be. But
whatever is chosen, the row lies between bounds, and what does not is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsabench.ops import _attention, _nsa
from nsabench.ops._contract import Inputs

if TYPE_CHECKING:
    from torch import Tensor

# A block is in doubt whose score is as near as so many times what tells two scores apart.
IN_DOUBT = 2.0
LOGITS = 1 << 24  # in float64 at a time


@dataclass(frozen=True)
class Legal:
    """rows: int64 [n], of a result [..., w] with all axes but the last as one, rising; lo, hi:
    float64 [n,w]. All on the CPU, where no kernel that is measured reaches by accident."""

    rows: Tensor
    lo: Tensor
    hi: Tensor

    def nearest(self, result: Tensor) -> Tensor:
        """Of the rows of a result, what is within the bounds and nearest: float64 [n,w], beside
        the result. NaN stays NaN."""
        import torch

        held = result.reshape(-1, result.shape[-1])[self.rows.to(result.device)].double().cpu()
        return torch.minimum(torch.maximum(held, self.lo), self.hi).to(result.device)


def of_rounding(inputs: Inputs, oracle: Tensor) -> Legal | None:
    """The bounds of the rows of `nsa_attention` that an oracle leaves out; None: there is none.

    The certain blocks A have the output o_A and the weight Z_A. One block b of those in doubt moves
    it by at most Z_b / (Z_A + Z_b) of the way to its own output o_b, whatever else is chosen; so
    each element lies between o_A and all moves down, and o_A and all moves up.
    """
    import torch

    left_out = oracle[..., 0].isinf()
    tokens = left_out.any(-1).flatten().nonzero().flatten()
    found = list(_pieces(inputs, tokens))
    if not found:
        return None
    rows, lo, hi = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))
    order = rows.argsort()
    return Legal(rows[order], lo[order], hi[order])


def _pieces(inputs: Inputs, tokens: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    import torch

    length, heads = inputs.tensors["q"].shape[1:3]
    for piece in _nsa.pieces(inputs, tokens):
        some = piece.hangs.nonzero().flatten()
        if not some.numel():
            continue
        batch, places, own = piece.rows
        of_head = torch.arange(own.start, own.stop, device=places.device)
        index = (batch * length + places[some]).unsqueeze(1) * heads + of_head
        gates = piece.gates[some].unsqueeze(-1)  # [n,G,3,1]
        low, high = _selected(inputs, piece, some)
        exact = gates[..., 0, :] * piece.compressed.out[some]
        exact += gates[..., 2, :] * piece.window.out[some]
        ends = gates[..., 1, :] * low, gates[..., 1, :] * high
        yield (
            index.flatten(),
            (exact + torch.minimum(*ends)).flatten(0, 1),
            (exact + torch.maximum(*ends)).flatten(0, 1),
        )


def _selected(inputs: Inputs, piece: _nsa.Piece, some: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds [n,G,Dv] of the selected branch of some queries of a piece."""
    import torch

    batch, places, _ = piece.rows
    size, scale = inputs.options["block_size"], inputs.options["sm_scale"]
    certain, doubtful = _blocks(piece, some, inputs)
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


def _blocks(piece: _nsa.Piece, some: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """bool [n,blocks]: blocks that any legal choice holds, and those that it may hold."""
    import torch

    ranked, count = piece.ranked[some], inputs.options["n_selected"]
    values = ranked.sort(1, descending=True).values
    last, following = values[:, count - 1 : count], values[:, count : count + 1]
    near = IN_DOUBT * _nsa.resolved(inputs) * last.clamp_min(_nsa.LEAST_SCORE)
    certain = ranked > following + near
    doubtful = ~certain & (ranked >= last - near) & torch.isfinite(ranked)
    return certain, doubtful
