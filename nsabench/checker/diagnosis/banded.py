"""Mistakes in a band of keys, which a query sees because of its place in a sequence or a cache."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nsabench.checker.diagnosis.evidence import (
    Known,
    OtherInputs,
    OtherKeys,
    make_spans,
    place_rows,
)
from nsabench.checker.diagnosis.keys import TILES
from nsabench.ops import Inputs, compressed, sliding_window
from nsabench.ops._sequences import BandedOp, sequence_ends, spread_over_tokens


def place_in_sequences(inputs: Inputs, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    token = place_rows(inputs, rows)[1]
    start, end = sequence_ends(inputs)
    return token, start[token], end[token]


def mistake_packing(inputs: Inputs) -> OtherInputs:
    t = inputs.tensors
    if "cu_seqlens" not in t:
        return
    alone = {name: x for name, x in t.items() if name not in ("cu_seqlens", "cu_keys")}
    yield "takes the packed sequences for one", replace(inputs, tensors=alone)
    tokens = t["q"].shape[1]
    for when, by in (("late", 1), ("early", -1)):
        moved = (t["cu_seqlens"] + by).clamp(0, tokens)
        moved[0], moved[-1] = 0, tokens
        yield f"has sequences begin one token {when}", inputs.replaced({"cu_seqlens": moved})


def select_causal(inputs: Inputs, rows: Tensor) -> Tensor:
    token, start, _ = place_in_sequences(inputs, rows)
    return make_spans(start, token + 1)


def mistake_causal(inputs: Inputs, rows: Tensor) -> OtherKeys:
    token, start, end = place_in_sequences(inputs, rows)
    own = token + 1
    text = "attends to the whole sequence, without a causal mask"
    yield text, make_spans(start, end)
    yield "leaves out the query's own key", make_spans(start, own - 1)
    yield "attends to one key after the query", make_spans(start, own + 1)
    yield "leaves out the first key", make_spans(start + 1, own)
    for tile in TILES:
        whole = torch.minimum((own + tile - 1) // tile * tile, end)
        text = f"attends up to the end of its tile of {tile}, past the query"
        yield text, make_spans(start, whole)


def select_window(inputs: Inputs, rows: Tensor) -> Tensor:
    return _select_band(sliding_window.OP, inputs, rows)


def _select_band(op: BandedOp, inputs: Inputs, rows: Tensor) -> Tensor:
    token = place_rows(inputs, rows)[1]
    first, end = op.bounds(inputs)
    return make_spans(first[token], end[token])


def mistake_window_size(inputs: Inputs) -> OtherInputs:
    window = int(inputs.options["window"])
    for other in (window - 1, window + 1):
        if other > 0:
            text = f"uses a window of {other} keys instead of {window}"
            yield text, inputs.replaced(window=other)


def mistake_window_inputs(inputs: Inputs) -> OtherInputs:
    yield from mistake_window_size(inputs)
    every = inputs.replaced(window=inputs.tensors["q"].shape[1])
    yield "attends to all keys up to the query, in no window", every
    yield from mistake_packing(inputs)


def mistake_window(inputs: Inputs, rows: Tensor) -> OtherKeys:
    lo, hi = select_window(inputs, rows)[:, 0].unbind(-1)
    yield "leaves out the query's own key", make_spans(lo, hi - 1)
    yield "attends to one key after the query", make_spans(lo, hi + 1)
    text = "attends as far after the query as before it"
    yield text, make_spans(lo, hi + int(inputs.options["window"]) - 1)
    yield "leaves out key 0", make_spans(lo.clamp(min=1), hi)
    for tile in TILES:
        down, up = lo // tile * tile, (lo + tile - 1) // tile * tile
        whole = (hi + tile - 1) // tile * tile
        text = f"attends up to the end of its tile of {tile}, past the query"
        yield text, make_spans(lo, whole)
        text = f"attends from the begin of a tile of {tile} on, before the window"
        yield text, make_spans(down, hi)
        text = f"attends only from the first of the tiles of {tile} that the window holds"
        yield text, make_spans(up, hi)


def select_complete(inputs: Inputs, rows: Tensor) -> Tensor:
    return _select_band(compressed.OP, inputs, rows)


def mistake_complete_inputs(inputs: Inputs) -> OtherInputs:
    block, stride = (int(inputs.options[name]) for name in ("block", "stride"))
    for text, other in (
        ("sees each compressed key one token late", block + 1),
        ("sees each compressed key one token early", block - 1),
        ("sees compressed keys that have begun and that are not complete", 1),
        (f"sees compressed keys after {stride} tokens, the stride, that are not complete", stride),
    ):
        yield text, inputs.replaced(block=other)
    yield from mistake_packing(inputs)


def mistake_complete(inputs: Inputs, rows: Tensor) -> OtherKeys:
    cu, cu_keys = (inputs.tensors.get(name) for name in ("cu_seqlens", "cu_keys"))
    first = select_complete(inputs, rows)[:, 0, 0]
    counts = torch.full_like(first, inputs.tensors["k"].shape[1])
    if cu is not None and cu_keys is not None:
        token = place_rows(inputs, rows)[1]
        counts = spread_over_tokens(cu_keys.diff(), cu)[token]
        before = inputs.replaced({"cu_keys": torch.cat([cu_keys[:1], cu_keys[:-1]])})
        yield "takes the keys of the sequence before", select_complete(before, rows)
    text = "attends to all compressed keys, whatever the query's place"
    yield text, make_spans(first, first + counts)


def select_all(inputs: Inputs, rows: Tensor) -> Tensor:
    return make_spans(0 * rows, 0 * rows + inputs.tensors["k"].shape[1])


def select_packed_row(inputs: Inputs, rows: Tensor) -> Tensor:
    cu = inputs.tensors["cu_seqlens"].long()
    return make_spans(cu[rows], cu[rows + 1])


def mistake_packed_row(inputs: Inputs, rows: Tensor) -> OtherKeys:
    start, end = select_packed_row(inputs, rows)[:, 0].unbind(-1)
    longest = inputs.tensors["cu_seqlens"].diff().max()
    text = "attends to one key too many, the first key of the next row"
    yield text, make_spans(start, end + 1)
    text = "attends to one key too many, the last key of the row before"
    yield text, make_spans(start - 1, end)
    text = "attends from its first key on to as many keys as the longest row has"
    yield text, make_spans(start, start + longest)
    count = len(inputs.tensors["q"])
    for which, by in (("next", 1), ("previous", -1)):
        other = select_packed_row(inputs, (rows + by) % count)
        yield f"attends to the keys of the {which} row", other


def select_newest(inputs: Inputs, rows: Tensor) -> Tensor:
    """Return the keys of a window, or of a whole cache without one."""
    end = torch.full_like(rows, inputs.tensors["k"].shape[2])
    return make_spans((end - int(inputs.options.get("window", end[0]))).clamp(min=0), end)


def mistake_newest_inputs(inputs: Inputs) -> OtherInputs:
    yield from mistake_window_size(inputs)
    every = inputs.replaced(window=inputs.tensors["k"].shape[2])
    yield "attends to all of the cache, in no window", every


def mistake_newest(inputs: Inputs, rows: Tensor) -> OtherKeys:
    first, end = select_newest(inputs, rows)[:, 0].unbind(-1)
    yield "leaves out the token's own key", make_spans(first, end - 1)
    yield "has its window end one key early", make_spans(first - 1, end - 1)


_WHOLE_CACHE = Known(spans=select_newest)
KNOWN = {
    "selection_rows": Known(spans=select_all),
    "sliding_window": Known(mistake_window_inputs, select_window, mistake_window),
    "compressed": Known(mistake_complete_inputs, select_complete, mistake_complete),
    "causal_attention": Known(mistake_packing, select_causal, mistake_causal),
    "selection_varlen": Known(spans=select_packed_row, keys=mistake_packed_row),
    "decode_window": Known(mistake_newest_inputs, select_newest, mistake_newest),
    "decode_dense": _WHOLE_CACHE,
    "decode_compressed": _WHOLE_CACHE,
}
