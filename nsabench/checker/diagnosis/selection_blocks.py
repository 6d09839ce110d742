"""Mistakes in which blocks, and which keys of them, a query attends to (op selection_blocks)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from nsabench.checker.diagnosis import sharing
from nsabench.checker.diagnosis.banded import moved_starts, packed_as_one, sequences
from nsabench.checker.diagnosis.evidence import Evidence, Hypothesis, Mistakes
from nsabench.checker.diagnosis.selected import Selection, coordinates
from nsabench.ops import Inputs

OTHER_SIZES = (16, 32, 64, 128)


def lead(inputs: Inputs) -> tuple[int, ...]:
    return tuple(inputs.tensors["block_indices"].shape[:3])


def select(inputs: Inputs, rows: Tensor) -> Selection:
    t = inputs.tensors
    b, token, h = coordinates(rows, lead(inputs))
    start, end = sequences(t["q"].shape[1], t.get("cu_seqlens"), rows.device)
    blocks, size = t["block_indices"][b, token, h].long(), int(inputs.options["block_size"])
    return Selection(
        q=t["q"].unflatten(2, (t["k"].shape[2], -1))[b, token, h],
        k=t["k"].transpose(1, 2),
        v=t["v"].transpose(1, 2),
        batch=b,
        head=h,
        chosen=_keys(blocks, size, start[token], end[token], token),
        sm_scale=inputs.options["sm_scale"],
    )


def _keys(
    blocks: Tensor, size: int, start: Tensor, end: Tensor, last: Tensor, *, repeated: bool = False
) -> list[Tensor]:
    """Return the keys of blocks [R,S] of `size` keys that count from `start` [R], before `end` [R],
    up to `last` [R]; each once unless `repeated`."""
    within = torch.arange(size, device=blocks.device)
    chosen = []
    for row, first, stop, limit in zip(
        blocks, start.tolist(), end.tolist(), last.tolist(), strict=True
    ):
        given = row[row >= 0]
        given = given.sort().values if repeated else given.unique()
        keys = (given.unsqueeze(1) * size + within).flatten() + first
        chosen.append(keys[(keys < stop) & (keys <= limit)])
    return chosen


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    t = evidence.full.tensors
    size = int(evidence.full.options["block_size"])
    given, cu = t["block_indices"], t.get("cu_seqlens")
    b, token, h = coordinates(evidence.rows, lead(evidence.full))
    tokens, slots = given.shape[1], given.shape[3]
    start, end = (x[token] for x in sequences(tokens, cu, token.device))
    chosen = given[b, token, h].long()
    of = partial(sharing.selecting, evidence)

    for text, last in (
        ("attends to keys after the query, to all of its own block", end),
        ("leaves out the query's own key", token - 1),
        ("attends to one key after the query", token + 1),
    ):
        yield of(text, _keys(chosen, size, start, end, last))
    if cu is not None:
        none, all_ = torch.zeros_like(start), torch.full_like(end, tokens)
        yield of("takes the packed sequences for one", _keys(chosen, size, none, all_, token))
        for text, moved in moved_starts(tokens, cu):
            first, stop = (x[token] for x in moved)
            yield of(text, _keys(chosen, size, first, stop, token))
    if (chosen.sort(-1).values.diff(dim=-1) == 0).any():
        keys = _keys(chosen, size, start, end, token, repeated=True)
        yield of("counts a block as often as it is given", keys)
    own = ((token - start) // size).unsqueeze(1)
    places = torch.arange(slots, device=chosen.device)
    ended = (chosen < 0).cummax(-1).values
    not_first, not_last = (chosen.masked_fill(places == slot, -1) for slot in (0, slots - 1))
    for text, changed in (
        ("reads -1, which is no block, as block 0", chosen.clamp(min=0)),
        ("stops at the first -1", chosen.masked_fill(ended, -1)),
        ("leaves out the query's own block", chosen.masked_fill(chosen == own, -1)),
        ("leaves out block 0", chosen.masked_fill(chosen == 0, -1)),
        (f"leaves out the first of the {slots} blocks that are given", not_first),
        (f"leaves out the last of the {slots} blocks that are given", not_last),
    ):
        yield of(text, _keys(changed, size, start, end, token))
    for text, kept in (("last", size - 1), ("first", 0)):
        some = [
            keys[(keys - int(first)) % size != kept]
            for keys, first in zip(evidence.of_selection.chosen, start, strict=True)
        ]
        yield of(f"leaves out the {text} key of each block", some)
    for other in OTHER_SIZES:
        if other != size:
            yield of(f"takes blocks of {other} keys", _keys(chosen, other, start, end, token))
    others = []
    if given.shape[2] > 1:
        others.append(("head 0", given[b, token, 0 * h]))
    if tokens > 1:
        others.append(("the query before", given[b, (token - 1) % tokens, h]))
        others.append(("the next query", given[b, (token + 1) % tokens, h]))
    for whose, choice in others:
        keys = _keys(choice.long(), size, start, end, token)
        yield of(f"takes the choice of {whose}", keys)
    by_head = [
        _keys(given[b, token, other].long(), size, start, end, token)
        for other in range(given.shape[2])
    ]
    yield from sharing.hypotheses(evidence, by_head)


def other_blocks(inputs: Inputs) -> Mistakes:
    yield from packed_as_one(inputs)
    t = inputs.tensors
    given, size = t["block_indices"], int(inputs.options["block_size"])
    slots = given.shape[3]
    start, _ = sequences(given.shape[1], t.get("cu_seqlens"), given.device)
    position = torch.arange(given.shape[1], device=given.device) - start
    own = (position // size).view(1, -1, 1, 1)
    last = torch.arange(slots, device=given.device) == slots - 1
    for text, changed in (
        ("leaves out the query's own block", given.masked_fill(given == own, -1)),
        ("leaves out block 0", given.masked_fill(given == 0, -1)),
        ("reads -1, which is no block, as block 0", given.clamp(min=0)),
        (f"leaves out the last of the {slots} blocks that are given", given.masked_fill(last, -1)),
        ("takes the choice of head 0", given[:, :, :1].expand_as(given)),
        ("takes the choice of the query before", given.roll(1, 1)),
    ):
        yield text, inputs.replaced({"block_indices": changed})
