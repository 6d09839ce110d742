"""Mistakes of every op whose rows select keys of a K and V that they share with other rows: keys of
another head or sequence, and masked keys that count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from nsabench.checker.diagnosis import keys as of_keys
from nsabench.checker.diagnosis.evidence import Evidence, Hypothesis
from nsabench.checker.diagnosis.keys import TILES, Keys
from nsabench.checker.diagnosis.selected import Selection


def selecting(evidence: Evidence, text: str, chosen: Sequence[Tensor]) -> Hypothesis:
    """Return that rows attend to other keys of their K and V; a key that is named twice counts
    twice."""
    return Hypothesis(text, partial(_attend, evidence, chosen=chosen))


def hypotheses(
    evidence: Evidence, chosen_by: Sequence[Sequence[Tensor]] | None = None, *, dealt: bool = True
) -> Iterator[Hypothesis]:
    """chosen_by: what the rows select by KV head, if that depends on the head. dealt: whether query
    heads could be dealt to KV heads in turn."""
    selection = evidence.of_selection
    if dealt:
        yield from _dealt(evidence, chosen_by)
    yield from _heads(evidence, selection)
    yield from _nothing_selected(evidence, selection)
    k, v = selection.gathered()
    if int(selection.count.max()):
        keys = Keys(evidence, k, v, selection.count)
        yield from of_keys.prefixes(keys)
        yield from of_keys.ends(keys)
        yield from of_keys.softmax(keys)
        yield from of_keys.values(keys)
        yield from _masked(evidence, selection)
        yield from of_keys.precision(keys)


def _attend(evidence: Evidence, **changes: object) -> Tensor:
    out = evidence.of_selection.attend(**changes)  # type: ignore[arg-type]
    return out.reshape(evidence.oracle.shape)


def _heads(evidence: Evidence, selection: Selection) -> Iterator[Hypothesis]:
    batches, heads = selection.k.shape[:2]
    if heads > 1:
        head, first = selection.head, torch.zeros_like(selection.head)
        for text, other in (
            ("head 0", first),
            ("the next head", (head + 1) % heads),
            ("the head before", (head - 1) % heads),
        ):
            for what, changes in (
                ("K and V", {"head": other}),
                ("V", {"head": head, "head_of_v": other}),
                ("K", {"head": other, "head_of_v": head}),
            ):
                yield Hypothesis(f"reads {what} of {text}", partial(_attend, evidence, **changes))
    if batches > 1:
        first = torch.zeros_like(selection.batch)
        yield Hypothesis("reads K and V of sequence 0", partial(_attend, evidence, batch=first))


def _dealt(
    evidence: Evidence, chosen_by: Sequence[Sequence[Tensor]] | None
) -> Iterator[Hypothesis]:
    """Query heads are dealt to the KV heads in turn, not in groups."""
    selection = evidence.of_selection
    heads, group = selection.k.shape[1], selection.q.shape[1]
    if heads == 1 or group == 1:
        return
    of_query = selection.head.unsqueeze(1) * group + torch.arange(group, device=selection.q.device)
    wrong = of_query % heads

    def predict() -> Tensor:
        if chosen_by is None:
            return _attend(evidence, head=wrong)
        parts = []
        for i in range(group):
            chosen = [chosen_by[int(h)][r] for r, h in enumerate(wrong[:, i])]
            parts.append(selection.attend(chosen, head=wrong[:, i])[:, i : i + 1])
        return torch.cat(parts, 1).reshape(evidence.oracle.shape)

    yield Hypothesis(f"takes KV head i % {heads} for query head i", predict)


def _nothing_selected(evidence: Evidence, selection: Selection) -> Iterator[Hypothesis]:
    empty = selection.count == 0
    if not empty.any():
        return

    def mean() -> Tensor:
        # Only those of rows that select nothing: there are few K and V, and many rows.
        pairs = zip(selection.batch[empty], selection.head[empty], strict=True)
        means = [selection.v[b, h].double().mean(0) for b, h in pairs]
        out = evidence.oracle.flatten(0, -3).clone()
        out[empty] = torch.stack(means).unsqueeze(1).expand(-1, out.shape[1], -1)
        return out.reshape(evidence.oracle.shape)

    yield Hypothesis("gives rows without keys the mean of all values", mean)


def _masked(evidence: Evidence, selection: Selection) -> Iterator[Hypothesis]:
    """Masked keys of a tile score 0 instead of being left out."""
    size = selection.k.shape[2]
    for tile in TILES[:4]:
        offsets = torch.arange(tile, device=selection.q.device)
        chosen, unscored = [], []
        for keys in selection.chosen:
            tiles = (keys // tile).unique().unsqueeze(1) * tile
            of_tiles = (tiles + offsets).flatten()
            of_tiles = of_tiles[of_tiles < size]
            chosen.append(of_tiles)
            unscored.append(~torch.isin(of_tiles, keys))
        if any(bool(marks.any()) for marks in unscored):
            yield Hypothesis(
                f"counts the keys that are masked in a tile of {tile} with a score of 0",
                partial(_attend, evidence, chosen=chosen, unscored=unscored),
            )
