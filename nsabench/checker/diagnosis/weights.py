"""Predict mistakes in how a row weighs its keys, and in which of them it reads.

Most predictions need the same exponentials, which are computed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from nsabench.checker.diagnosis.evidence import Evidence, Selection, unite
from nsabench.checker.diagnosis.search import Hypothesis, mistake

TILES = (16, 32, 64, 128, 256)
# The most products of weights and values that `_find_prefix` holds, unless one row has more.
SEARCH_ELEMENTS = 1 << 24
LOWER = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Keys:
    """The softmax weights of the evidence, not yet divided by their sum: [R,H,L].

    k [R,L,D] and v [R,L,Dv] hold the keys that each row selects, in order. In row r, the first
    count[r] of the L places are keys, and the others are padding.
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
        # `ragged` says that rows select different numbers of keys.
        self.ragged = bool((self.count != self.length).any())

    def attend(self, counted: Tensor) -> Tensor:
        """Compute the output if each key counts `counted` times (broadcast to [R,H,L])."""
        weights = self.weights * counted
        return _weigh(self, weights, weights)

    def between(self, start: int, stop: int) -> Tensor:
        return ((self.rank >= start) & (self.rank < stop)).double()


def divide(x: Tensor, weights: Tensor) -> Tensor:
    return (x / weights.sum(-1, keepdim=True)).nan_to_num()


def find_in_selection(evidence: Evidence, selection: Selection) -> Iterator[Hypothesis]:
    yield from _find_dealt_heads(evidence, selection)
    yield from _find_other_heads(evidence, selection)
    yield from _find_no_keys(evidence, selection)
    if int(selection.count.max()):
        keys = Keys(evidence, *selection.gather(), selection.count)
        yield from _find_prefixes(keys)
        yield from _find_counted(keys)
        yield from _find_softmax(keys)
        yield from _find_other_values(keys)
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

    yield mistake("heads-dealt-in-turn", heads=heads, group=group), predict


def _find_other_heads(evidence: Evidence, selection: Selection) -> Iterator[Hypothesis]:
    batches, heads = selection.k.shape[:2]
    head = selection.head
    others = {"the first": 0 * head, "the next": (head + 1) % heads}
    others["the previous"] = (head - 1) % heads
    for which, other in others.items() if heads > 1 else ():
        for tensors, changes in (
            ("K and V", {"head": other}),
            ("V", {"head_of_v": other}),
            ("K", {"head": other, "head_of_v": head}),
        ):
            diagnosis = mistake("other-kv-head", tensors=tensors, which=which)
            yield diagnosis, partial(evidence.attend, **changes)
    if batches > 1:
        first = torch.zeros_like(selection.batch)
        yield mistake("other-sequence"), partial(evidence.attend, batch=first)


def _find_no_keys(evidence: Evidence, selection: Selection) -> Iterator[Hypothesis]:
    empty = selection.count == 0
    if not empty.any():
        return

    def predict() -> Tensor:
        pairs = zip(selection.batch[empty], selection.head[empty], strict=True)
        means = [selection.v[b, h].double().mean(0) for b, h in pairs]
        out = evidence.oracle.flatten(0, -3).clone()
        out[empty] = torch.stack(means).unsqueeze(1).expand(-1, out.shape[1], -1)
        return evidence.shape(out)

    yield mistake("no-keys-mean"), predict


def _find_masked_keys(evidence: Evidence, selection: Selection) -> Iterator[Hypothesis]:
    for tile in TILES[:4]:
        offsets = torch.arange(tile, device=selection.q.device)
        chosen, unscored = [], []
        for keys in selection.chosen:
            of_tiles = ((keys // tile).unique().unsqueeze(1) * tile + offsets).flatten()
            chosen.append(of_tiles[of_tiles < selection.k.shape[2]])
            unscored.append(~torch.isin(chosen[-1], keys))
        if any(bool(marks.any()) for marks in unscored):
            predict = partial(evidence.attend, chosen, unscored=unscored)
            yield mistake("masked-scores-zero", tile=tile), predict


def _find_prefixes(keys: Keys) -> Iterator[Hypothesis]:
    length = keys.length
    # If only the last or the first key of every row is lost, another hypothesis says so.
    most = length if keys.ragged else length - 1
    which = "keys of each row" if keys.ragged else f"of {length} keys"
    first = _find_prefix(keys, keys.rank.expand(len(keys.v), -1))
    if first < most:
        kept = keys.between(0, first)
        diagnosis = mistake("first-keys-only", count=first, keys=which)
        if first == 1:
            diagnosis = mistake("key-zero-only")
        yield diagnosis, partial(keys.attend, kept)
    last = _find_prefix(keys, (keys.count - 1 - keys.rank) % length)
    if last < most:
        kept = (keys.rank >= keys.count - last).double().unsqueeze(1)
        yield mistake("last-keys-only", count=last, keys=which), partial(keys.attend, kept)


def _find_prefix(keys: Keys, ranks: Tensor) -> int:
    """Return the n for which the first n keys, by `ranks` [R,L], explain the output best."""
    # One head of a few rows is enough to tell prefixes apart.
    rows = max(1, SEARCH_ELEMENTS // (keys.length * keys.v.shape[-1]))
    marked = keys.evidence.marked.reshape(-1, keys.heads)
    head = int(marked.sum(0).argmax())
    some = marked[:, head].nonzero().flatten()[:rows]
    weights = keys.weights[some, head].gather(1, ranks[some]).unsqueeze(-1)
    v = keys.v[some].gather(1, ranks[some].unsqueeze(-1).expand(-1, -1, keys.v.shape[-1]))
    output = keys.evidence.output.flatten(0, -3)[some, None, head]
    guesses = ((weights * v).cumsum(1) / weights.cumsum(1)).nan_to_num()
    return int((guesses - output).abs().mean((0, 2)).argmin()) + 1


def _find_counted(keys: Keys) -> Iterator[Hypothesis]:
    counted = {
        mistake("last-key-lost"): keys.rank < keys.count - 1,
        mistake("first-key-lost"): keys.rank.expand(len(keys.count), -1) >= 1,
        mistake("key-zero-twice"): 1 + (keys.rank.expand(len(keys.count), -1) < 1).long(),
    }
    length = keys.length
    for tile in TILES:
        if length > tile:
            whole = keys.count // tile * tile
            counted[mistake("partial-tile-lost", tile=tile)] = keys.rank < whole
        if length > tile and length % tile and not keys.ragged:
            first, end = length - tile, length - length % tile
            twice = (keys.rank >= first) & (keys.rank < end)
            overlap = mistake("tiles-overlap", first=first, last=end - 1, tile=tile)
            counted[overlap] = 1 + twice.long().unsqueeze(0)
    for diagnosis, times in counted.items():
        yield diagnosis, partial(keys.attend, times.double().unsqueeze(1))
    for tile in TILES:
        yield mistake("padding-counted", tile=tile), partial(_pad, keys, -keys.count % tile)


def _pad(keys: Keys, count: Tensor) -> Tensor:
    """Compute the output with `count` [R,1] more keys, whose scores and values are 0."""
    padding = count.unsqueeze(-1) * torch.exp(-keys.top)
    total = keys.weights.sum(-1, keepdim=True) + padding
    return keys.shape((keys.weights @ keys.v / total).nan_to_num())


def _find_softmax(keys: Keys) -> Iterator[Hypothesis]:
    yield mistake("not-divided"), lambda: keys.shape(keys.weights @ keys.v)
    plain = keys.weights * keys.top.exp()
    yield mistake("no-maximum"), lambda: keys.shape(plain @ keys.v)
    yield from _find_not_rescaled(keys)
    yield from _find_splits(keys)
    yield mistake("no-softmax"), lambda: keys.shape(keys.scores @ keys.v)
    mean = keys.v.sum(1, keepdim=True) / keys.count.clamp(min=1).unsqueeze(-1)
    equal = mean.expand(-1, keys.heads, -1)
    yield mistake("plain-mean"), lambda: keys.shape(equal)


def _find_not_rescaled(keys: Keys) -> Iterator[Hypothesis]:
    for tile in TILES[:4]:
        if keys.length > tile:
            stale = keys.weights * torch.exp(keys.top - _find_running_maximum(keys, tile))
            for sums, output, total in (
                ("output", stale, keys.weights),
                ("weights", keys.weights, stale),
                ("output and weights", stale, stale),
            ):
                diagnosis = mistake("not-rescaled", sums=sums, tile=tile)
                yield diagnosis, partial(_weigh, keys, output, total)


def _weigh(keys: Keys, output: Tensor, total: Tensor) -> Tensor:
    return keys.shape(divide(output @ keys.v, total))


def _find_running_maximum(keys: Keys, tile: int) -> Tensor:
    """Return for each key the largest score up to the end of its tile, 0 if none: [R,H,L]."""
    highest = torch.stack([part.amax(-1) for part in keys.masked.split(tile, -1)], -1)
    running = highest.cummax(-1).values.repeat_interleave(tile, -1)[..., : keys.length]
    return running.nan_to_num(neginf=0.0)


def _find_splits(keys: Keys) -> Iterator[Hypothesis]:
    sizes = sorted({-(-keys.length // parts) for parts in (2, 4, 8, 16, 32)} | set(TILES))
    for size in sizes:
        if 1 < size < keys.length:
            merged = mistake("splits-not-rescaled", size=size)
            yield merged, partial(_merge_splits, keys, size)
            averaged = mistake("splits-averaged", size=size)
            yield averaged, partial(_average_splits, keys, size)


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
    for which, by in (("next", -1), ("previous", 1)):
        other = keys.v.roll(by, 1)
        yield mistake("value-of-other-key", which=which), partial(_weigh_values, keys, other)
    for tile in TILES:
        if tile < keys.length:
            other = torch.cat([keys.v[:, :tile], keys.v[:, :-tile]], 1)
            yield mistake("values-of-other-tile", tile=tile), partial(_weigh_values, keys, other)


def _weigh_values(keys: Keys, v: Tensor) -> Tensor:
    return keys.shape(keys.shares @ v)


def _find_precision(keys: Keys) -> Iterator[Hypothesis]:
    for name, dtype in LOWER.items():
        for tile in (*(tile for tile in TILES[:4] if tile < keys.length), keys.length):
            words = {"format": name, "tile": tile}
            rounded = partial(_run_in_fewer_bits, keys, tile, weights=dtype)
            yield mistake("weights-rounded", **words), rounded
            if tile < keys.length:
                accumulated = partial(_run_in_fewer_bits, keys, tile, sums=dtype)
                yield mistake("sums-rounded", **words), accumulated


def _run_in_fewer_bits(
    keys: Keys, tile: int, weights: torch.dtype | None = None, sums: torch.dtype | None = None
) -> Tensor:
    running = _find_running_maximum(keys, tile)
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
