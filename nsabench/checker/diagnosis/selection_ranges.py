"""Mistakes in which keys of its spans a query attends to (op selection_ranges)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nsabench.checker.diagnosis import sharing
from nsabench.checker.diagnosis.evidence import Evidence, Hypothesis, Mistakes
from nsabench.checker.diagnosis.keys import TILES
from nsabench.checker.diagnosis.selected import Selection, coordinates, each_key, union
from nsabench.ops import Inputs

OUTSIDE = 256  # places before the first key and behind the last that are tried


def lead(inputs: Inputs) -> tuple[int, ...]:
    return tuple(inputs.tensors["q"].shape[:3])


def select(inputs: Inputs, rows: Tensor) -> Selection:
    t = inputs.tensors
    b, s, g = coordinates(rows, lead(inputs))
    return Selection(
        q=t["q"][b, s, g],
        k=t["k"],
        v=t["v"],
        batch=b,
        head=g,
        chosen=union(t["ranges"][b, s, g].long(), t["k"].shape[2]),
        sm_scale=inputs.options["sm_scale"],
    )


def _shifted(ranges: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield mistakes at the ends of spans [...,n,2]; empty spans stay empty."""
    filled = ranges[..., 1:] > ranges[..., :1]
    for text, shift in (
        ("leaves out the first key of each span", (1, 0)),
        ("leaves out the last key of each span", (0, -1)),
        ("attends to one key beyond the end of each span", (0, 1)),
        ("attends to one key before the start of each span", (-1, 0)),
    ):
        yield text, torch.where(filled, ranges + ranges.new_tensor(shift), 0)


def _without_one(ranges: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield spans [...,n,2] without the last and without the first, if there are others."""
    count = ranges.shape[-2]
    if count > 1:
        yield f"leaves out the last of the {count} spans", ranges[..., :-1, :]
        yield f"leaves out the first of the {count} spans", ranges[..., 1:, :]


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    t = evidence.full.tensors
    keys = t["k"].shape[2]
    b, s, g = coordinates(evidence.rows, lead(evidence.full))
    ranges = t["ranges"][b, s, g].long()
    each = each_key(ranges, keys)
    if any(len(row) > len(row.unique()) for row in each):
        text = "counts keys as often as spans hold them: where spans overlap, more than once"
        yield sharing.selecting(evidence, text, each)
    for text, changed in _of_spans(ranges):
        yield sharing.selecting(evidence, text, union(changed, keys))
    outside = (ranges < 0) | (ranges > keys)
    if outside.any():
        # Shifted, so that what lies a little outside can be told from what lies inside.
        near = (ranges + OUTSIDE).clamp(0, keys + 2 * OUTSIDE)
        reached = [row - OUTSIDE for row in union(near, keys + 2 * OUTSIDE)]
        text = "counts the first or the last key once for each place of a span beyond it"
        yield sharing.selecting(evidence, text, [row.clamp(0, keys - 1) for row in reached])
        wrapped = [(row[row < keys] % keys).unique() for row in reached]
        yield sharing.selecting(evidence, "reads keys before the first from the end", wrapped)
    others = [*_rounded(ranges)]
    groups, queries = t["k"].shape[1], t["q"].shape[1]
    if groups > 1:
        others.append(("takes the choice of head 0", t["ranges"][b, s, 0 * g].long()))
    if queries > 1:
        for which, by in (("query before", -1), ("next query", 1)):
            other = t["ranges"][b, (s + by) % queries, g].long()
            others.append((f"takes the choice of the {which}", other))
    for text, changed in others:
        yield sharing.selecting(evidence, text, union(changed, keys))
    yield from sharing.hypotheses(evidence, dealt=False)


def _of_spans(ranges: Tensor) -> Iterator[tuple[str, Tensor]]:
    """ranges: int64 [R,n,2]."""
    yield from _shifted(ranges)
    if ranges.shape[1] > 1:
        yield "attends to the first span only", ranges[:, :1]
        yield from _without_one(ranges)
        reach = ranges[..., 1].cummax(1).values.roll(1, 1)
        reach[:, 0] = 0
        start = torch.maximum(ranges[..., 0], reach)
        behind = torch.stack([start, torch.maximum(start, ranges[..., 1])], -1)
        text = "takes the spans for sorted, and of each only what lies behind the others"
        yield text, behind
    text = "takes a span that ends before it begins for one that is filled"
    yield text, ranges.sort(-1).values


def _rounded(ranges: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Spans read in whole tiles, or of whole tiles only."""
    start, end = ranges.unbind(-1)
    filled = end > start
    for tile in TILES[:4]:
        down, up = ranges // tile * tile, (ranges + tile - 1) // tile * tile
        for text, a, z in (
            (f"rounds the ends of spans up to multiples of {tile}", start, up[..., 1]),
            (f"rounds the starts of spans down to multiples of {tile}", down[..., 0], end),
            (f"rounds spans out to multiples of {tile}", down[..., 0], up[..., 1]),
            (f"rounds the ends of spans down to multiples of {tile}", start, down[..., 1]),
            (f"rounds the starts of spans up to multiples of {tile}", up[..., 0], end),
        ):
            yield text, torch.where(filled.unsqueeze(-1), torch.stack([a, z], -1), 0)


def other_spans(inputs: Inputs) -> Mistakes:
    ranges = inputs.tensors["ranges"]
    for text, changed in (
        *list(_shifted(ranges))[:3],
        *_without_one(ranges),
        ("takes the choice of head 0", ranges[:, :, :1].expand_as(ranges)),
        ("takes the choice of the query before", ranges.roll(1, 1)),
    ):
        yield text, inputs.replaced({"ranges": changed})
