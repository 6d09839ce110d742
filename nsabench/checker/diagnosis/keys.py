"""Mistakes in which of its selected keys a row attends to, for every op whose rows select keys.

All are weighted sums of the same exponentials, which are computed once. In row r and head h the
l-th selected key has the weight exp(scale q.k - max). A mistake leaves keys out, or counts them
twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from nsabench.checker.diagnosis.evidence import Evidence, Hypothesis

TILES = (16, 32, 64, 128, 256)
# Products of weight and value that the search over every number of keys may hold at a time.
SEARCH_ELEMENTS = 1 << 24


class Keys:
    """The softmax weights of the evidence, not yet divided by their sum: [R,H,L].

    k [R,L,D] and v [R,L,Dv] are the keys that each row selects, in order; count [R] of the L are
    keys, the others fill the shape.
    """

    def __init__(self, evidence: Evidence, k: Tensor, v: Tensor, count: Tensor) -> None:
        self.evidence = evidence
        self.count = count.unsqueeze(1)
        self.rank = torch.arange(k.shape[1], device=k.device)
        present = self.rank < self.count
        self.present = present.unsqueeze(1)
        self.v = v.double() * present.unsqueeze(2)
        q = evidence.inputs.tensors["q"].flatten(0, -3)
        scores = q.double() @ k.double().mT * evidence.inputs.options["sm_scale"]
        self.scores = scores * self.present
        masked = scores.masked_fill(~self.present, -torch.inf)
        self.top = masked.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        self.weights = torch.exp(masked - self.top)
        self.length = self.weights.shape[-1]
        self.heads = self.weights.shape[-2]

    @property
    def ragged(self) -> bool:
        """Whether rows select different numbers of keys."""
        return bool((self.count != self.length).any())

    def attend(self, counted: Tensor) -> Tensor:
        """Compute the output if each key counts `counted` times (broadcast to [R,H,L])."""
        weights = self.weights * counted
        return self.shaped((weights @ self.v / weights.sum(-1, keepdim=True)).nan_to_num())

    def shaped(self, rows: Tensor) -> Tensor:
        """Shape [R,H,Dv] as the op's output."""
        return rows.reshape(self.evidence.oracle.shape)

    def between(self, start: int, stop: int) -> Tensor:
        """Return ones from key `start` to key `stop` of each row, else zeros."""
        return ((self.rank >= start) & (self.rank < stop)).double()

    def last(self, some: int) -> Tensor:
        """Return ones for the last `some` keys of each row, else zeros."""
        return (self.rank >= self.count - some).double().unsqueeze(1)


def prefixes(keys: Keys) -> Iterator[Hypothesis]:
    """Yield the numbers of first and of last keys that come nearest."""
    length = keys.length
    if length <= 1:
        return
    of = "keys of each row" if keys.ragged else f"of {length} keys"
    first = _nearest_prefix(keys, reverse=False)
    if first < length:
        text = f"attends to the first {first} {of}"
        text = "attends to key 0 only" if first == 1 else text
        yield Hypothesis(text, lambda: keys.attend(keys.between(0, first)))
    last = _nearest_prefix(keys, reverse=True)
    if last < length:
        text = f"attends to the last {last} {of}"
        only = (
            "the last key of each row only" if keys.ragged else f"the last key, {length - 1}, only"
        )
        text = f"attends to {only}" if last == 1 else text
        yield Hypothesis(text, lambda: keys.attend(keys.last(last)))


def _nearest_prefix(keys: Keys, *, reverse: bool) -> int:
    ranks = keys.rank.expand(len(keys.v), -1)
    if reverse:
        ranks = (keys.count - 1 - keys.rank) % keys.length
    # One head of a few rows tells prefixes apart.
    rows = max(1, SEARCH_ELEMENTS // (keys.length * keys.v.shape[-1]))
    marked = keys.evidence.marked.reshape(-1, keys.heads)
    head = int(marked.sum(0).argmax())
    some = marked[:, head].nonzero().flatten()[:rows]
    weights = keys.weights[some, head].gather(1, ranks[some]).unsqueeze(-1)
    v = keys.v[some].gather(1, ranks[some].unsqueeze(-1).expand(-1, -1, keys.v.shape[-1]))
    output = keys.evidence.output.flatten(0, -3)[some, None, head]
    guesses = ((weights * v).cumsum(1) / weights.cumsum(1)).nan_to_num()
    return int((guesses - output).abs().mean((0, 2)).argmin()) + 1


def ends(keys: Keys) -> Iterator[Hypothesis]:
    """Rows are off by one, or by a tile that is not full, at an end."""
    counted = {
        "leaves out the first key of each row": keys.rank.expand(len(keys.count), -1) >= 1,
        "leaves out the last key of each row": keys.rank < keys.count - 1,
    }
    for tile in TILES:
        if int(keys.count.max()) > tile:
            text = f"leaves out the last keys of each row that fill no tile of {tile}"
            counted[text] = keys.rank < keys.count // tile * tile
    for text, some in counted.items():
        yield Hypothesis(text, partial(keys.attend, some.double().unsqueeze(1)))
    for tile in TILES:
        text = f"counts zero keys of padding up to the next multiple of {tile}"
        yield Hypothesis(text, partial(padded, keys, -keys.count % tile))


def padded(keys: Keys, count: Tensor | int) -> Tensor:
    """Compute the output with zero keys: each scores 0 and adds to the sum of weights alone."""
    some = count.unsqueeze(-1) if isinstance(count, Tensor) else count
    total = keys.weights.sum(-1, keepdim=True) + some * torch.exp(-keys.top)
    return keys.shaped((keys.weights @ keys.v / total).nan_to_num())


def softmax(keys: Keys) -> Iterator[Hypothesis]:
    """The softmax lacks a part, or its online form does not rescale."""
    yield Hypothesis(
        "does not divide by the sum of the weights", lambda: keys.shaped(keys.weights @ keys.v)
    )
    yield Hypothesis(
        "neither subtracts the maximum nor divides by the sum of the weights",
        lambda: keys.shaped((keys.weights * keys.top.exp()) @ keys.v),
    )
    yield from _not_rescaled(keys)
    yield from splits(keys)
    yield Hypothesis("takes no softmax of the scores", lambda: keys.shaped(keys.scores @ keys.v))
    mean = keys.v.sum(1, keepdim=True) / keys.count.clamp(min=1).unsqueeze(-1)
    yield Hypothesis("is the plain mean of V", lambda: keys.shaped(mean.expand(-1, keys.heads, -1)))


def _not_rescaled(keys: Keys) -> Iterator[Hypothesis]:
    """The sums of a tile keep the maximum known at its time."""
    for tile in TILES[:4]:
        if keys.length > tile:
            stale = keys.weights * torch.exp(keys.top - _running_maximum(keys, tile))
            for left in (("output",), ("weights",), ("output", "weights")):
                yield Hypothesis(
                    f"does not rescale the {' and the '.join(left)} summed so far when the maximum "
                    f"rises, in tiles of {tile}",
                    partial(_online, keys, stale, left),
                )


def _running_maximum(keys: Keys, tile: int) -> Tensor:
    """Return the maximum that is known after a key's tile, else 0: [R,H,L]."""
    scores = keys.scores.masked_fill(~keys.present, -torch.inf)
    highest = torch.stack([part.amax(-1) for part in scores.split(tile, -1)], -1)
    running = highest.cummax(-1).values.repeat_interleave(tile, -1)[..., : keys.length]
    return running.nan_to_num(neginf=0.0)


def _online(keys: Keys, stale: Tensor, left: tuple[str, ...]) -> Tensor:
    """Compute an online softmax with `stale` weights in what is `left` without rescaling."""
    output, weights = (stale if of in left else keys.weights for of in ("output", "weights"))
    return keys.shaped((output @ keys.v / weights.sum(-1, keepdim=True)).nan_to_num())


def splits(keys: Keys) -> Iterator[Hypothesis]:
    """Keys are split evenly, and the parts are merged wrongly."""
    sizes = sorted({-(-keys.length // parts) for parts in (2, 4, 8, 16, 32)} | set(TILES))
    scores = keys.scores.masked_fill(~keys.present, -torch.inf)
    for size in sizes:
        if not 1 < size < keys.length:
            continue
        text = f"merges splits of {size} keys without rescaling them to one maximum"
        yield Hypothesis(text, partial(_merged, keys, scores, size))
        text = f"is the plain mean of splits of {size} keys"
        yield Hypothesis(text, partial(_averaged, keys, size))


def _averaged(keys: Keys, size: int) -> Tensor:
    starts = range(0, keys.length, size)
    return torch.stack([keys.attend(keys.between(a, a + size)) for a in starts]).mean(0)


def _merged(keys: Keys, scores: Tensor, size: int) -> Tensor:
    parts = scores.split(size, -1)
    tops = [part.amax(-1, keepdim=True).nan_to_num(neginf=0.0) for part in parts]
    own = torch.cat([torch.exp(part - top) for part, top in zip(parts, tops, strict=True)], -1)
    return keys.shaped((own @ keys.v / own.sum(-1, keepdim=True)).nan_to_num())


def values(keys: Keys) -> Iterator[Hypothesis]:
    """The weights are right, but are multiplied with the values of other keys."""
    if keys.length < 2:
        return
    shares = (keys.weights / keys.weights.sum(-1, keepdim=True)).nan_to_num()
    for which, by in (("next", -1), ("previous", 1)):
        text = f"multiplies each weight with the value of the {which} key"
        yield Hypothesis(text, partial(_weighted, keys, shares, keys.v.roll(by, 1)))
    for tile in TILES:
        if tile < keys.length:
            stale = torch.cat([keys.v[:, :tile], keys.v[:, :-tile]], 1)
            text = f"multiplies the weights of a tile with the values of the tile of {tile} before"
            yield Hypothesis(text, partial(_weighted, keys, shares, stale))


def _weighted(keys: Keys, shares: Tensor, v: Tensor) -> Tensor:
    return keys.shaped(shares @ v)


LOWER = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def precision(keys: Keys) -> Iterator[Hypothesis]:
    """Weights or sums have too few bits, a tile of keys at a time."""
    for name, dtype in LOWER.items():
        for tile in (*TILES[:4], keys.length):
            whole = tile >= keys.length
            if whole and tile != keys.length:
                continue
            tiles = "" if whole else f", a tile of {tile} keys at a time"
            text = f"rounds the weights to {name}{tiles}"
            yield Hypothesis(text, partial(_in_fewer_bits, keys, tile, weights=dtype))
            if not whole:
                text = f"accumulates in {name}{tiles}"
                yield Hypothesis(text, partial(_in_fewer_bits, keys, tile, sums=dtype))
                text = f"{text}, the weights divided first"
                yield Hypothesis(text, partial(_accumulate, keys, tile, dtype))


def _in_fewer_bits(
    keys: Keys, tile: int, weights: torch.dtype | None = None, sums: torch.dtype | None = None
) -> Tensor:
    """Compute an online softmax whose weights, or whose sums of values, are rounded."""
    running = _running_maximum(keys, tile)
    top = torch.full_like(keys.top, -torch.inf)
    output = torch.zeros_like(keys.weights[..., :1] * keys.v[:, :1])
    total = torch.zeros_like(keys.top)
    p = keys.weights * torch.exp(keys.top - running)
    for start in range(0, keys.length, tile):
        part, v = p[..., start : start + tile], keys.v[:, start : start + tile]
        higher = running[..., start : start + 1]
        factor, top = torch.exp(top - higher), higher
        total = total * factor + part.sum(-1, keepdim=True)
        output = output * factor + (part.to(weights).double() if weights else part) @ v
        if sums:
            output = output.to(sums).double()
    return keys.shaped((output / total).nan_to_num())


def _accumulate(keys: Keys, tile: int, dtype: torch.dtype) -> Tensor:
    shares = (keys.weights / keys.weights.sum(-1, keepdim=True)).nan_to_num()
    total = torch.zeros_like(shares[..., :1] * keys.v[:, :1])
    for part, v in zip(shares.split(tile, -1), keys.v.split(tile, 1), strict=True):
        total = (total + part @ v).to(dtype).double()
    return keys.shaped(total)
