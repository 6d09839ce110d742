"""Mistakes in which of its selected keys a row attends to, and in how it weighs them.

Most are weighted sums of the same exponentials, which are computed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from nsabench.checker.diagnosis.evidence import Evidence, Selection, unite
from nsabench.checker.diagnosis.search import Hypothesis

TILES = (16, 32, 64, 128, 256)
# Products of weight and value that the search over every number of keys may hold at a time.
SEARCH_ELEMENTS = 1 << 24
LOWER = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Keys:
    """The softmax weights of the evidence, not yet divided by their sum: [R,H,L].

    k [R,L,D] and v [R,L,Dv] hold the keys that each row selects, in order. The first count [R] of
    the L are keys, and the others fill the shape.
    """

    def __init__(self, evidence: Evidence, k: Tensor, v: Tensor, count: Tensor) -> None:
        self.evidence, self.shape = evidence, evidence.shape
        self.count = count.unsqueeze(1)
        self.rank = torch.arange(k.shape[1], device=k.device)
        present = self.rank < self.count
        self.v = v.double() * present.unsqueeze(2)
        q = evidence.inputs.tensors["q"].flatten(0, -3)
        scores = q.double() @ k.double().mT * evidence.inputs.options["sm_scale"]
        self.scores = scores * present.unsqueeze(1)
        self.masked = scores.masked_fill(~present.unsqueeze(1), -torch.inf)
        self.top = self.masked.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        self.weights = torch.exp(self.masked - self.top)
        self.shares = divide(self.weights, self.weights)
        self.heads, self.length = self.weights.shape[-2:]
        # Whether rows select different numbers of keys.
        self.ragged = bool((self.count != self.length).any())

    def attend(self, counted: Tensor) -> Tensor:
        """Compute the output if each key counts `counted` times (broadcast to [R,H,L])."""
        weights = self.weights * counted
        return self.shape(divide(weights @ self.v, weights))

    def between(self, start: int, stop: int) -> Tensor:
        return ((self.rank >= start) & (self.rank < stop)).double()


def divide(x: Tensor, weights: Tensor) -> Tensor:
    """Divide by the sum of the weights; a row without weights gives zeros."""
    return (x / weights.sum(-1, keepdim=True)).nan_to_num()


def find_in_selection(evidence: Evidence, selection: Selection) -> Iterator[Hypothesis]:
    yield from _find_dealt_heads(evidence, selection)
    yield from _find_other_heads(evidence, selection)
    yield from _find_no_keys(evidence, selection)
    if int(selection.count.max()):
        keys = Keys(evidence, *selection.gather(), selection.count)
        for find in (
            _find_prefixes,
            _find_tiles,
            _find_ends,
            _find_softmax,
            _find_other_values,
        ):
            yield from find(keys)
        yield from _find_masked_keys(evidence, selection)
        yield from _find_precision(keys)


def _find_dealt_heads(evidence: Evidence, selection: Selection) -> Iterator[Hypothesis]:
    heads, group = selection.k.shape[1], selection.q.shape[1]
    if heads == 1 or group == 1:
        return

    def predict() -> Tensor:
        assert evidence.spans is not None
        parts = []
        for i in range(group):
            head = (selection.head * group + i) % heads
            rows = evidence.rows - selection.head + head
            chosen = unite(evidence.spans(evidence.full, rows).long(), selection.k.shape[2])
            parts.append(selection.attend(chosen, head=head)[:, i : i + 1])
        return evidence.shape(torch.cat(parts, 1))

    yield Hypothesis(f"takes KV head i % {heads} for query head i", predict)


def _find_other_heads(evidence: Evidence, selection: Selection) -> Iterator[Hypothesis]:
    batches, heads = selection.k.shape[:2]
    head = selection.head
    if heads > 1:
        for text, other in (
            ("head 0", torch.zeros_like(head)),
            ("the next head", (head + 1) % heads),
            ("the head before", (head - 1) % heads),
        ):
            for what, changes in (
                ("K and V", {"head": other}),
                ("V", {"head_of_v": other}),
                ("K", {"head": other, "head_of_v": head}),
            ):
                yield Hypothesis(f"reads {what} of {text}", partial(evidence.attend, **changes))
    if batches > 1:
        first = torch.zeros_like(selection.batch)
        yield Hypothesis("reads K and V of sequence 0", partial(evidence.attend, batch=first))


def _find_no_keys(evidence: Evidence, selection: Selection) -> Iterator[Hypothesis]:
    empty = selection.count == 0
    if not empty.any():
        return

    def mean() -> Tensor:
        pairs = zip(selection.batch[empty], selection.head[empty], strict=True)
        means = [selection.v[b, h].double().mean(0) for b, h in pairs]
        out = evidence.oracle.flatten(0, -3).clone()
        out[empty] = torch.stack(means).unsqueeze(1).expand(-1, out.shape[1], -1)
        return evidence.shape(out)

    yield Hypothesis("gives rows without keys the mean of all values", mean)


def _find_masked_keys(evidence: Evidence, selection: Selection) -> Iterator[Hypothesis]:
    for tile in TILES[:4]:
        offsets = torch.arange(tile, device=selection.q.device)
        chosen, unscored = [], []
        for keys in selection.chosen:
            of_tiles = ((keys // tile).unique().unsqueeze(1) * tile + offsets).flatten()
            chosen.append(of_tiles[of_tiles < selection.k.shape[2]])
            unscored.append(~torch.isin(chosen[-1], keys))
        if any(bool(marks.any()) for marks in unscored):
            text = f"counts the keys that are masked in a tile of {tile} with a score of 0"
            yield Hypothesis(text, partial(evidence.attend, chosen, unscored=unscored))


def _find_tiles(keys: Keys) -> Iterator[Hypothesis]:
    length = keys.length
    if keys.ragged:
        return
    for padding in sorted({-length % tile for tile in TILES} - {0}):
        text = f"counts {padding} zero keys of padding after the {length}"
        yield Hypothesis(text, partial(_pad, keys, torch.full_like(keys.count, padding)))
    for tile in TILES:
        overlap = (length - tile, length - length % tile)
        if length > tile and length % tile:
            which = f"{overlap[0]} to {overlap[1] - 1}"
            text = f"counts keys {which} twice: two tiles of {tile} overlap"
            yield Hypothesis(text, partial(keys.attend, 1 + keys.between(*overlap)))
    yield Hypothesis("counts key 0 twice", lambda: keys.attend(1 + keys.between(0, 1)))


def _find_prefixes(keys: Keys) -> Iterator[Hypothesis]:
    length = keys.length
    if length <= 1:
        return
    of = "keys of each row" if keys.ragged else f"of {length} keys"
    first = _find_prefix(keys, keys.rank.expand(len(keys.v), -1))
    if first < length:
        text = "attends to key 0 only" if first == 1 else f"attends to the first {first} {of}"
        yield Hypothesis(text, lambda: keys.attend(keys.between(0, first)))
    last = _find_prefix(keys, (keys.count - 1 - keys.rank) % length)
    if last < length:
        text = f"attends to the last {last} {of}"
        if last == 1:
            which = "the last key of each row" if keys.ragged else f"the last key, {length - 1},"
            text = f"attends to {which} only"
        kept = (keys.rank >= keys.count - last).double().unsqueeze(1)
        yield Hypothesis(text, lambda: keys.attend(kept))


def _find_prefix(keys: Keys, ranks: Tensor) -> int:
    """Return how many keys, in the order of `ranks` [R,L], give what is nearest to the output."""
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


def _find_ends(keys: Keys) -> Iterator[Hypothesis]:
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
        yield Hypothesis(text, partial(_pad, keys, -keys.count % tile))


def _pad(keys: Keys, count: Tensor) -> Tensor:
    """Compute the output with zero keys: each scores 0 and adds to the sum of weights alone."""
    padding = count.unsqueeze(-1) * torch.exp(-keys.top)
    total = keys.weights.sum(-1, keepdim=True) + padding
    return keys.shape((keys.weights @ keys.v / total).nan_to_num())


def _find_softmax(keys: Keys) -> Iterator[Hypothesis]:
    text = "does not divide by the sum of the weights"
    yield Hypothesis(text, lambda: keys.shape(keys.weights @ keys.v))
    text = "neither subtracts the maximum nor divides by the sum of the weights"
    yield Hypothesis(text, lambda: keys.shape((keys.weights * keys.top.exp()) @ keys.v))
    yield from _find_not_rescaled(keys)
    yield from _find_splits(keys)
    yield Hypothesis("takes no softmax of the scores", lambda: keys.shape(keys.scores @ keys.v))
    mean = keys.v.sum(1, keepdim=True) / keys.count.clamp(min=1).unsqueeze(-1)
    yield Hypothesis("is the plain mean of V", lambda: keys.shape(mean.expand(-1, keys.heads, -1)))


def _find_not_rescaled(keys: Keys) -> Iterator[Hypothesis]:
    for tile in TILES[:4]:
        if keys.length > tile:
            stale = keys.weights * torch.exp(keys.top - _running_maximum(keys, tile))
            for left in (("output",), ("weights",), ("output", "weights")):
                output, weights = (
                    stale if name in left else keys.weights for name in ("output", "weights")
                )
                yield Hypothesis(
                    f"does not rescale the {' and the '.join(left)} summed so far when the maximum "
                    f"rises, in tiles of {tile}",
                    partial(_weigh, keys, output, weights),
                )


def _weigh(keys: Keys, output: Tensor, weights: Tensor) -> Tensor:
    return keys.shape(divide(output @ keys.v, weights))


def _running_maximum(keys: Keys, tile: int) -> Tensor:
    """Return the maximum that is known after a key's tile, else 0: [R,H,L]."""
    highest = torch.stack([part.amax(-1) for part in keys.masked.split(tile, -1)], -1)
    running = highest.cummax(-1).values.repeat_interleave(tile, -1)[..., : keys.length]
    return running.nan_to_num(neginf=0.0)


def _find_splits(keys: Keys) -> Iterator[Hypothesis]:
    sizes = sorted({-(-keys.length // parts) for parts in (2, 4, 8, 16, 32)} | set(TILES))
    for size in sizes:
        if 1 < size < keys.length:
            text = f"merges splits of {size} keys without rescaling them to one maximum"
            yield Hypothesis(text, partial(_merge_splits, keys, size))
            text = f"is the plain mean of splits of {size} keys"
            yield Hypothesis(text, partial(_average_splits, keys, size))


def _average_splits(keys: Keys, size: int) -> Tensor:
    starts = range(0, keys.length, size)
    return torch.stack([keys.attend(keys.between(a, a + size)) for a in starts]).mean(0)


def _merge_splits(keys: Keys, size: int) -> Tensor:
    parts = keys.masked.split(size, -1)
    tops = [part.amax(-1, keepdim=True).nan_to_num(neginf=0.0) for part in parts]
    own = torch.cat([torch.exp(part - top) for part, top in zip(parts, tops, strict=True)], -1)
    return _weigh(keys, own, own)


def _find_other_values(keys: Keys) -> Iterator[Hypothesis]:
    if keys.length < 2:
        return

    def weigh(v: Tensor) -> Tensor:
        return keys.shape(keys.shares @ v)

    for which, by in (("next", -1), ("previous", 1)):
        text = f"multiplies each weight with the value of the {which} key"
        yield Hypothesis(text, partial(weigh, keys.v.roll(by, 1)))
    for tile in TILES:
        if tile < keys.length:
            before = torch.cat([keys.v[:, :tile], keys.v[:, :-tile]], 1)
            text = f"multiplies the weights of a tile with the values of the tile of {tile} before"
            yield Hypothesis(text, partial(weigh, before))


def _find_precision(keys: Keys) -> Iterator[Hypothesis]:
    for name, dtype in LOWER.items():
        for tile in (*(tile for tile in TILES[:4] if tile < keys.length), keys.length):
            whole = tile == keys.length
            tiles = "" if whole else f", a tile of {tile} keys at a time"
            text = f"rounds the weights to {name}{tiles}"
            yield Hypothesis(text, partial(_run_in_fewer_bits, keys, tile, weights=dtype))
            if not whole:
                text = f"accumulates in {name}{tiles}"
                yield Hypothesis(text, partial(_run_in_fewer_bits, keys, tile, sums=dtype))


def _run_in_fewer_bits(
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
    return keys.shape((output / total).nan_to_num())
