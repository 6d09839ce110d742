"""Mistakes in the keys that were chosen for a query: in spans of keys (ops selection_ranges and
decode_selected) and in blocks of keys (op selection_blocks)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nsabench.checker.diagnosis.banded import mistake_packing, place_in_sequences
from nsabench.checker.diagnosis.evidence import (
    Known,
    OtherInputs,
    OtherKeys,
    list_keys,
    make_spans,
    place_rows,
)
from nsabench.checker.diagnosis.keys import TILES
from nsabench.ops import Inputs
from nsabench.ops._sequences import sequence_ends

OUTSIDE = 256  # places before the first key and behind the last that are tried
OTHER_SIZES = (16, 32, 64, 128)


def select_spans(inputs: Inputs, rows: Tensor) -> Tensor:
    return inputs.tensors["ranges"][place_rows(inputs, rows)]


def _mistake_tensor(inputs: Inputs, name: str, others: Iterator[tuple[str, Tensor]]) -> OtherInputs:
    return ((text, inputs.replaced({name: other})) for text, other in others)


def _mistake_choice(chosen: Tensor) -> Iterator[tuple[str, Tensor]]:
    """chosen: [B,T,H,...], what was chosen for each query and KV head."""
    if chosen.shape[2] > 1:
        yield "takes the choice of head 0", chosen[:, :, :1].expand_as(chosen)
    if chosen.shape[1] > 1:
        yield "takes the choice of the query before", chosen.roll(1, 1)
        yield "takes the choice of the next query", chosen.roll(-1, 1)


def _mistake_ends(spans: Tensor, kind: str) -> Iterator[tuple[str, Tensor]]:
    """Yield other spans [...,n,2] for mistakes at their ends; empty spans stay empty."""
    filled = spans[..., 1:] > spans[..., :1]
    for text, shift in (
        ("leaves out the first key of each", (1, 0)),
        ("leaves out the last key of each", (0, -1)),
        ("attends to one key beyond the end of each", (0, 1)),
        ("attends to one key before the start of each", (-1, 0)),
    ):
        yield f"{text} {kind}", torch.where(filled, spans + spans.new_tensor(shift), 0)
    count = spans.shape[-2]
    if count > 1:
        yield f"leaves out the last of the {count} {kind}s", spans[..., :-1, :]
        yield f"leaves out the first of the {count} {kind}s", spans[..., 1:, :]


def mistake_span_inputs(inputs: Inputs) -> OtherInputs:
    spans = inputs.tensors["ranges"]
    yield from _mistake_tensor(inputs, "ranges", _mistake_ends(spans, "span"))
    yield from _mistake_tensor(inputs, "ranges", _mistake_choice(spans))


def mistake_spans(inputs: Inputs, rows: Tensor) -> OtherKeys:
    keys, spans = inputs.tensors["k"].shape[2], select_spans(inputs, rows).long()
    each = list_keys(spans, keys)
    if any(len(row) > len(row.unique()) for row in each):
        yield "counts keys as often as spans hold them: where spans overlap, more than once", each
    start, end = spans.unbind(-1)
    if spans.shape[1] > 1:
        yield "attends to the first span only", spans[:, :1]
        reach = end.cummax(1).values.roll(1, 1)
        reach[:, 0] = 0
        behind = torch.maximum(start, reach)
        text = "takes the spans for sorted, and of each only what lies behind the others"
        yield text, make_spans(behind, torch.maximum(behind, end))
    text = "takes a span that ends before it begins for one that is filled"
    yield text, spans.sort(-1).values
    if ((spans < 0) | (spans > keys)).any():
        # Shifted, so that what lies a little outside can be told from what lies inside.
        reached = [row.unique() - OUTSIDE for row in list_keys(spans + OUTSIDE, keys + 2 * OUTSIDE)]
        text = "counts the first or the last key once for each place of a span beyond it"
        yield text, [row.clamp(0, keys - 1) for row in reached]
        wrapped = [(row[row < keys] % keys).unique() for row in reached]
        yield "reads keys before the first from the end", wrapped
    for tile in TILES[:4]:
        down, up = spans // tile * tile, (spans + tile - 1) // tile * tile
        for text, first, last in (
            (f"rounds the ends of spans up to multiples of {tile}", start, up[..., 1]),
            (f"rounds the starts of spans down to multiples of {tile}", down[..., 0], end),
            (f"rounds spans out to multiples of {tile}", down[..., 0], up[..., 1]),
            (f"rounds the ends of spans down to multiples of {tile}", start, down[..., 1]),
            (f"rounds the starts of spans up to multiples of {tile}", up[..., 0], end),
        ):
            yield text, make_spans(first, torch.where(end > start, last, first))


def mistake_cache_block_inputs(inputs: Inputs) -> OtherInputs:
    """Yield mistakes in the blocks of a cache; they are spans [B,H,n,2] that are cut off at S."""
    spans, size = inputs.tensors["ranges"], int(inputs.options["block_size"])
    start, end = spans[..., :1], spans[..., 1:]
    cut_off = (end > start) & (start + size > inputs.tensors["k"].shape[2])
    others = [*_mistake_ends(spans, "block")]
    others.append(("leaves out block 0", torch.where(start == 0, 0, spans)))
    others.append(("leaves out the blocks that are not whole", torch.where(cut_off, 0, spans)))
    if spans.shape[1] > 1:
        others.append(("takes the choice of head 0", spans[:, :1].expand_as(spans)))
    yield from _mistake_tensor(inputs, "ranges", iter(others))


def select_blocks(inputs: Inputs, rows: Tensor) -> Tensor:
    """Return the keys of blocks that the query sees; without a causal mask, all of its sequence."""
    chosen = inputs.tensors["block_indices"][place_rows(inputs, rows)].long()
    size = int(inputs.options["block_size"])
    token, start, end = place_in_sequences(inputs, rows)
    if inputs.options.get("causal", True):
        end = torch.minimum(end, token + 1)
    first = start.unsqueeze(1) + chosen * size
    last = torch.minimum(first + size, end.unsqueeze(1))
    return make_spans(first, torch.where(chosen < 0, first, last))


def mistake_block_inputs(inputs: Inputs) -> OtherInputs:
    given, size = inputs.tensors["block_indices"], int(inputs.options["block_size"])
    yield "attends to keys after the query, to all of its own block", inputs.replaced(causal=False)
    yield from mistake_packing(inputs)
    slots = given.shape[3]
    position = torch.arange(given.shape[1], device=given.device) - sequence_ends(inputs)[0]
    own = (position // size).view(1, -1, 1, 1)
    slot = torch.arange(slots, device=given.device)
    others = [
        ("reads -1, which is no block, as block 0", given.clamp(min=0)),
        ("stops at the first -1", given.masked_fill((given < 0).cummax(-1).values, -1)),
        ("leaves out the query's own block", given.masked_fill(given == own, -1)),
        ("leaves out block 0", given.masked_fill(given == 0, -1)),
        (
            f"leaves out the first of the {slots} blocks that are given",
            given.masked_fill(slot == 0, -1),
        ),
        (
            f"leaves out the last of the {slots} blocks that are given",
            given.masked_fill(slot == slots - 1, -1),
        ),
    ]
    yield from _mistake_tensor(inputs, "block_indices", iter(others))
    yield from _mistake_tensor(inputs, "block_indices", _mistake_choice(given))
    for other in OTHER_SIZES:
        if other != size:
            yield f"takes blocks of {other} keys", inputs.replaced(block_size=other)


def mistake_blocks(inputs: Inputs, rows: Tensor) -> OtherKeys:
    t, size = inputs.tensors, int(inputs.options["block_size"])
    token, _, sequence_end = (x.unsqueeze(1) for x in place_in_sequences(inputs, rows))
    start, end = select_blocks(inputs, rows).unbind(-1)
    yield "leaves out the query's own key", make_spans(start, torch.minimum(end, token))
    own = (end == token + 1) & (token + 1 < torch.minimum(start + size, sequence_end))
    yield "attends to one key after the query", make_spans(start, end + own.long())
    if (t["block_indices"][place_rows(inputs, rows)].sort(-1).values.diff(dim=-1) == 0).any():
        each = list_keys(make_spans(start, end), t["k"].shape[1])
        yield "counts a block as often as it is given", each
    last = torch.minimum(end, start + size - 1)
    yield "leaves out the last key of each block", make_spans(start, last)
    yield "leaves out the first key of each block", make_spans(start + 1, end)


KNOWN = {
    "selection_ranges": Known(mistake_span_inputs, select_spans, mistake_spans),
    "selection_blocks": Known(mistake_block_inputs, select_blocks, mistake_blocks),
    "decode_selected": Known(mistake_cache_block_inputs, select_spans),
}
