"""Return the keys that each op selects for a row, and those that known mistakes would select."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from nsabench.checker.diagnosis.evidence import (
    Known,
    OtherInputs,
    OtherKeys,
    list_keys,
    make_spans,
    place_rows,
)
from nsabench.checker.diagnosis.search import Diagnosis, mistake
from nsabench.checker.diagnosis.weights import TILES
from nsabench.ops import Inputs, compressed, sliding_window
from nsabench.ops._sequences import BandedOp, sequence_ends, spread_over_tokens

OUTSIDE = 256  # how far before the first key, and after the last, a kernel is assumed to read
OTHER_SIZES = (16, 32, 64, 128)


def place_in_sequences(inputs: Inputs, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the token of each row, and the first token and end of its sequence: [R] each."""
    token = place_rows(inputs, rows)[1]
    start, end = sequence_ends(inputs)
    return token, start[token], end[token]


def mistake_packing(inputs: Inputs) -> OtherInputs:
    t = inputs.tensors
    if "cu_seqlens" not in t:
        return
    alone = {name: x for name, x in t.items() if name not in ("cu_seqlens", "cu_keys")}
    yield mistake("packing-ignored"), replace(inputs, tensors=alone)
    tokens = t["q"].shape[1]
    for when, by in (("late", 1), ("early", -1)):
        moved = (t["cu_seqlens"] + by).clamp(0, tokens)
        moved[0], moved[-1] = 0, tokens
        yield mistake("sequence-begin", when=when), inputs.replaced({"cu_seqlens": moved})


def select_all(inputs: Inputs, rows: Tensor) -> Tensor:
    return make_spans(0 * rows, 0 * rows + inputs.tensors["k"].shape[1])


def select_packed_row(inputs: Inputs, rows: Tensor) -> Tensor:
    cu = inputs.tensors["cu_seqlens"].long()
    return make_spans(cu[rows], cu[rows + 1])


def select_causal(inputs: Inputs, rows: Tensor) -> Tensor:
    token, start, _ = place_in_sequences(inputs, rows)
    return make_spans(start, token + 1)


def _select_band(op: BandedOp, inputs: Inputs, rows: Tensor) -> Tensor:
    token = place_rows(inputs, rows)[1]
    first, end = op.bounds(inputs)
    return make_spans(first[token], end[token])


select_window = partial(_select_band, sliding_window.OP)
select_complete = partial(_select_band, compressed.OP)


def select_newest(inputs: Inputs, rows: Tensor) -> Tensor:
    end = torch.full_like(rows, inputs.tensors["k"].shape[2])
    return make_spans((end - int(inputs.options.get("window", end[0]))).clamp(min=0), end)


def _mistake_tiles(first: Tensor, end: Tensor, limit: Tensor) -> OtherKeys:
    for tile in TILES:
        whole = torch.minimum((end + tile - 1) // tile * tile, limit)
        yield mistake("tile-beyond-end", tile=tile), make_spans(first, whole)
        if first.any():
            down, up = first // tile * tile, (first + tile - 1) // tile * tile
            yield mistake("tile-before-begin", tile=tile), make_spans(down, end)
            yield mistake("first-tile-lost", tile=tile), make_spans(up, end)


def mistake_causal(inputs: Inputs, rows: Tensor) -> OtherKeys:
    token, start, end = place_in_sequences(inputs, rows)
    yield mistake("not-causal"), make_spans(start, end)
    yield mistake("key-beyond-end"), make_spans(start, token + 2)
    yield from _mistake_tiles(start, token + 1, end)


def mistake_window_size(inputs: Inputs) -> OtherInputs:
    window = int(inputs.options["window"])
    for other in (window - 1, window + 1):
        if other > 0:
            yield mistake("window-size", size=other, right=window), inputs.replaced(window=other)


def mistake_window_inputs(inputs: Inputs) -> OtherInputs:
    yield from mistake_window_size(inputs)
    yield mistake("window-ignored"), inputs.replaced(window=max(inputs.tensors["k"].shape))
    yield from mistake_packing(inputs)


def mistake_window(inputs: Inputs, rows: Tensor) -> OtherKeys:
    first, end = select_window(inputs, rows)[:, 0].unbind(-1)
    yield mistake("key-beyond-end"), make_spans(first, end + 1)
    both = make_spans(first, end + int(inputs.options["window"]) - 1)
    yield mistake("window-both-ways"), both
    yield mistake("key-zero-lost"), make_spans(first.clamp(min=1), end)
    yield from _mistake_tiles(first, end, place_in_sequences(inputs, rows)[2])


def mistake_complete_inputs(inputs: Inputs) -> OtherInputs:
    block, stride = (int(inputs.options[name]) for name in ("block", "stride"))
    for when, other in (("late", block + 1), ("early", block - 1)):
        yield mistake("compressed-key-end", when=when), inputs.replaced(block=other)
    for tokens in (1, stride):
        incomplete = mistake("incomplete-keys", tokens=tokens, block=block)
        yield incomplete, inputs.replaced(block=tokens)
    yield from mistake_packing(inputs)


def mistake_complete(inputs: Inputs, rows: Tensor) -> OtherKeys:
    cu, cu_keys = (inputs.tensors.get(name) for name in ("cu_seqlens", "cu_keys"))
    first = select_complete(inputs, rows)[:, 0, 0]
    counts = torch.full_like(first, inputs.tensors["k"].shape[1])
    if cu is not None and cu_keys is not None:
        counts = spread_over_tokens(cu_keys.diff(), cu)[place_rows(inputs, rows)[1]]
        before = inputs.replaced({"cu_keys": torch.cat([cu_keys[:1], cu_keys[:-1]])})
        yield mistake("keys-of-other-sequence"), select_complete(before, rows)
    yield mistake("not-causal"), make_spans(first, first + counts)


def mistake_packed_row(inputs: Inputs, rows: Tensor) -> OtherKeys:
    start, end = select_packed_row(inputs, rows)[:, 0].unbind(-1)
    yield mistake("key-beyond-end"), make_spans(start, end + 1)
    yield mistake("key-before-begin"), make_spans(start - 1, end)
    longest = inputs.tensors["cu_seqlens"].diff().max()
    yield mistake("rows-as-long"), make_spans(start, start + longest)
    count = len(inputs.tensors["q"])
    for which, by in (("next", 1), ("previous", -1)):
        other = select_packed_row(inputs, (rows + by) % count)
        yield mistake("keys-of-other-row", which=which), other


def mistake_newest(inputs: Inputs, rows: Tensor) -> OtherKeys:
    yield mistake("keys-shifted"), select_newest(inputs, rows) - 1


def select_spans(inputs: Inputs, rows: Tensor) -> Tensor:
    return inputs.tensors["ranges"][place_rows(inputs, rows)]


OtherTensors = Iterator[tuple[Diagnosis, Tensor]]


def _replace_tensor(inputs: Inputs, name: str, others: OtherTensors) -> OtherInputs:
    return ((diagnosis, inputs.replaced({name: other})) for diagnosis, other in others)


def _mistake_choice(chosen: Tensor) -> OtherTensors:
    """Yield wrong variants of `chosen` [B,T,H,...], the choice for each query and KV head."""
    if chosen.shape[2] > 1:
        yield mistake("choice-of-head"), chosen[:, :, :1].expand_as(chosen)
    if chosen.shape[1] > 1:
        yield mistake("choice-of-query", which="previous"), chosen.roll(1, 1)
        yield mistake("choice-of-query", which="next"), chosen.roll(-1, 1)


def _mistake_ends(spans: Tensor, span: str) -> OtherTensors:
    """Yield spans [...,n,2] with wrong ends (empty spans stay empty), or with one span lost."""
    filled = spans[..., 1:] > spans[..., :1]
    for name, shift in (
        ("span-first-key-lost", (1, 0)),
        ("span-last-key-lost", (0, -1)),
        ("span-key-beyond", (0, 1)),
        ("span-key-before", (-1, 0)),
    ):
        moved = torch.where(filled, spans + spans.new_tensor(shift), 0)
        yield mistake(name, span=span), moved
    count = spans.shape[-2]
    if count > 1:
        yield mistake("last-span-lost", count=count, span=span), spans[..., :-1, :]
        yield mistake("first-span-lost", count=count, span=span), spans[..., 1:, :]


def mistake_span_inputs(inputs: Inputs) -> OtherInputs:
    spans = inputs.tensors["ranges"]
    yield from _replace_tensor(inputs, "ranges", _mistake_ends(spans, "span"))
    yield from _replace_tensor(inputs, "ranges", _mistake_choice(spans))


def mistake_spans(inputs: Inputs, rows: Tensor) -> OtherKeys:
    keys, spans = inputs.tensors["k"].shape[2], select_spans(inputs, rows).long()
    yield from _count_overlaps(list_keys(spans, keys), "span")
    start, end = spans.unbind(-1)
    if spans.shape[1] > 1:
        yield mistake("first-span-only"), spans[:, :1]
        reach = end.cummax(1).values.roll(1, 1)
        reach[:, 0] = 0
        behind = torch.maximum(start, reach)
        yield mistake("spans-not-sorted"), make_spans(behind, torch.maximum(behind, end))
    yield mistake("reversed-span"), spans.sort(-1).values
    if ((spans < 0) | (spans > keys)).any():
        # The spans are shifted, since `list_keys` would cut off what is before the first key.
        reached = [row.unique() - OUTSIDE for row in list_keys(spans + OUTSIDE, keys + 2 * OUTSIDE)]
        yield mistake("index-clamped"), [row.clamp(0, keys - 1) for row in reached]
        wrapped = [(row[row < keys] % keys).unique() for row in reached]
        yield mistake("index-wrapped"), wrapped
    for tile in TILES[:4]:
        down, up = spans // tile * tile, (spans + tile - 1) // tile * tile
        for ends, way, first, last in (
            ("ends", "up", start, up[..., 1]),
            ("starts", "down", down[..., 0], end),
            ("starts and ends", "out", down[..., 0], up[..., 1]),
        ):
            rounded = make_spans(first, torch.where(end > start, last, first))
            yield mistake("span-rounded", ends=ends, way=way, tile=tile), rounded


def _count_overlaps(keys: list[Tensor], span: str) -> OtherKeys:
    if any(len(row) > len(row.unique()) for row in keys):
        yield mistake("overlap-counted", span=span), keys


# Blocks of keys are given as spans [B,H,n,2] of a cache, or as block numbers [B,T,H,S].


def mistake_cache_block_inputs(inputs: Inputs) -> OtherInputs:
    spans, size = inputs.tensors["ranges"], int(inputs.options["block_size"])
    start, end = spans[..., :1], spans[..., 1:]
    cut_off = (end > start) & (start + size > inputs.tensors["k"].shape[2])
    others = [*_mistake_ends(spans, "block")]
    others.append((mistake("block-zero-lost"), torch.where(start == 0, 0, spans)))
    others.append((mistake("partial-block-lost"), torch.where(cut_off, 0, spans)))
    if spans.shape[1] > 1:
        others.append((mistake("choice-of-head"), spans[:, :1].expand_as(spans)))
    yield from _replace_tensor(inputs, "ranges", iter(others))


def select_blocks(inputs: Inputs, rows: Tensor) -> Tensor:
    """Return the spans of chosen blocks, up to the query or, if not causal, its sequence's end."""
    chosen = inputs.tensors["block_indices"][place_rows(inputs, rows)].long()
    size = int(inputs.options["block_size"])
    token, start, end = place_in_sequences(inputs, rows)
    if inputs.options.get("causal", True):
        end = torch.minimum(end, token + 1)
    first = start.unsqueeze(1) + chosen * size
    last = torch.minimum(first + size, end.unsqueeze(1))
    return make_spans(first, torch.where(chosen < 0, first, last))


def mistake_block_inputs(inputs: Inputs) -> OtherInputs:
    chosen, size = inputs.tensors["block_indices"], int(inputs.options["block_size"])
    yield mistake("block-not-causal"), inputs.replaced(causal=False)
    yield from mistake_packing(inputs)
    position = torch.arange(chosen.shape[1], device=chosen.device) - sequence_ends(inputs)[0]
    own = chosen == (position // size).view(1, -1, 1, 1)
    count = chosen.shape[3]
    slot = torch.arange(count, device=chosen.device).expand_as(chosen)
    yield mistake("none-is-block-zero"), inputs.replaced({"block_indices": chosen.clamp(min=0)})
    for diagnosis, lost in (
        (mistake("stops-at-none"), (chosen < 0).cummax(-1).values),
        (mistake("own-block-lost"), own),
        (mistake("block-zero-lost"), chosen == 0),
        (mistake("first-span-lost", count=count, span="block"), slot == 0),
        (mistake("last-span-lost", count=count, span="block"), slot == count - 1),
    ):
        yield diagnosis, inputs.replaced({"block_indices": chosen.masked_fill(lost, -1)})
    yield from _replace_tensor(inputs, "block_indices", _mistake_choice(chosen))
    for other in OTHER_SIZES:
        if other != size:
            yield mistake("block-size", size=other, right=size), inputs.replaced(block_size=other)


def mistake_blocks(inputs: Inputs, rows: Tensor) -> OtherKeys:
    size = int(inputs.options["block_size"])
    token, _, sequence_end = (x.unsqueeze(1) for x in place_in_sequences(inputs, rows))
    start, end = select_blocks(inputs, rows).unbind(-1)
    yield mistake("own-key-lost"), make_spans(start, torch.minimum(end, token))
    own = (end == token + 1) & (token + 1 < torch.minimum(start + size, sequence_end))
    yield mistake("key-beyond-end"), make_spans(start, end + own.long())
    keys = list_keys(make_spans(start, end), inputs.tensors["k"].shape[1])
    yield from _count_overlaps(keys, "block")
    last = torch.minimum(end, start + size - 1)
    yield mistake("span-last-key-lost", span="block"), make_spans(start, last)
    yield mistake("span-first-key-lost", span="block"), make_spans(start + 1, end)


_WHOLE_CACHE = Known(spans=select_newest)
KNOWN = {
    "selection_rows": Known(spans=select_all),
    "selection_varlen": Known(spans=select_packed_row, keys=mistake_packed_row),
    "selection_ranges": Known(mistake_span_inputs, select_spans, mistake_spans),
    "selection_blocks": Known(mistake_block_inputs, select_blocks, mistake_blocks),
    "sliding_window": Known(mistake_window_inputs, select_window, mistake_window),
    "compressed": Known(mistake_complete_inputs, select_complete, mistake_complete),
    "causal_attention": Known(mistake_packing, select_causal, mistake_causal),
    "decode_window": Known(mistake_window_inputs, select_newest, mistake_newest),
    "decode_selected": Known(mistake_cache_block_inputs, select_spans),
    "decode_dense": _WHOLE_CACHE,
    "decode_compressed": _WHOLE_CACHE,
}
