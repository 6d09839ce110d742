"""Mistakes in which keys lo(t) up to hi(t) query t sees: ops sliding_window, compressed and
causal_attention. And where packed sequences begin and end, as it is and as it may be mistaken."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nsabench.checker.diagnosis import sharing
from nsabench.checker.diagnosis.evidence import Evidence, Hypothesis, Mistakes
from nsabench.checker.diagnosis.keys import TILES
from nsabench.checker.diagnosis.selected import Selection, coordinates, spans
from nsabench.ops import Inputs


def lead(inputs: Inputs) -> tuple[int, ...]:
    q, k = inputs.tensors["q"], inputs.tensors["k"]
    return (*q.shape[:2], k.shape[2])


def _select(inputs: Inputs, rows: Tensor, lo: Tensor, hi: Tensor) -> Selection:
    """lo, hi: int64 [R]."""
    t = inputs.tensors
    b, token, h = coordinates(rows, lead(inputs))
    return Selection(
        q=t["q"].unflatten(2, (t["k"].shape[2], -1))[b, token, h],
        k=t["k"].transpose(1, 2),
        v=t["v"].transpose(1, 2),
        batch=b,
        head=h,
        chosen=spans(lo, hi, t["k"].shape[1]),
        sm_scale=inputs.options["sm_scale"],
    )


def _selecting(evidence: Evidence, text: str, first: Tensor, end: Tensor) -> Hypothesis:
    keys = evidence.full.tensors["k"].shape[1]
    return sharing.selecting(evidence, text, spans(first, end, keys))


def sequences(tokens: int, cu: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where the sequence of each token begins and ends: int64 [tokens] each."""
    if cu is None:
        none = torch.zeros(tokens, dtype=torch.int64, device=device)
        return none, none + tokens
    return _of_tokens(cu, cu[:-1]), _of_tokens(cu, cu[1:])


def _of_tokens(cu: Tensor, value: Tensor) -> Tensor:
    """Return for each token the value of its sequence."""
    return torch.repeat_interleave(value.long(), cu.diff().long())


def moved_starts(tokens: int, cu: Tensor) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """Yield that sequences but the first begin a token late or early, and their `sequences`."""
    for when, by in (("late", 1), ("early", -1)):
        moved = (cu + by).clamp(0, tokens)
        moved[0], moved[-1] = 0, tokens
        text = f"has sequences begin one token {when}"
        yield text, sequences(tokens, moved, cu.device)


def packed_as_one(inputs: Inputs) -> Mistakes:
    """The packed sequences of any op."""
    packing = ("cu_seqlens", "cu_keys")
    if packing[0] in inputs.tensors:
        alone = {name: t for name, t in inputs.tensors.items() if name not in packing}
        yield "takes the packed sequences for one", Inputs(alone, inputs.options)


def _token_and_sequence(inputs: Inputs, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the token of each row, and where its sequence begins and ends."""
    t = inputs.tensors
    _, token, _ = coordinates(rows, lead(inputs))
    start, end = sequences(t["q"].shape[1], t.get("cu_seqlens"), rows.device)
    return token, start[token], end[token]


def select_causal(inputs: Inputs, rows: Tensor) -> Selection:
    token, start, _ = _token_and_sequence(inputs, rows)
    return _select(inputs, rows, start, token + 1)


def mistakes_in_causality(evidence: Evidence) -> Iterator[Hypothesis]:
    t = evidence.full.tensors
    cu, tokens = t.get("cu_seqlens"), t["k"].shape[1]
    token, start, end = _token_and_sequence(evidence.full, evidence.rows)
    own = token + 1
    for text, first, behind in (
        ("attends to the whole sequence, without a causal mask", start, end),
        ("leaves out the query's own key", start, own - 1),
        ("attends to one key after the query", start, own + 1),
        ("leaves out the first key", start + 1, own),
    ):
        yield _selecting(evidence, text, first, behind)
    if cu is not None:
        text = "takes the packed sequences for one"
        yield _selecting(evidence, text, torch.zeros_like(start), own)
        for text, (begins, _) in moved_starts(tokens, cu):
            yield _selecting(evidence, text, begins[token], own)
    for tile in TILES:
        whole = torch.minimum((own + tile - 1) // tile * tile, end)
        text = f"attends up to the end of its tile of {tile}, past the query"
        yield _selecting(evidence, text, start, whole)
    yield from sharing.hypotheses(evidence)


def select_window(inputs: Inputs, rows: Tensor) -> Selection:
    token, start, _ = _token_and_sequence(inputs, rows)
    lo = torch.maximum(start, token + 1 - int(inputs.options["window"]))
    return _select(inputs, rows, lo, token + 1)


def mistakes_in_a_window(evidence: Evidence) -> Iterator[Hypothesis]:
    t = evidence.full.tensors
    window, cu = int(evidence.full.options["window"]), t.get("cu_seqlens")
    token, start, _ = _token_and_sequence(evidence.full, evidence.rows)
    hi = token + 1
    lo = torch.maximum(start, hi - window)
    for other in (window - 1, window + 1):
        text = f"uses a window of {other} keys instead of {window}"
        yield _selecting(evidence, text, torch.maximum(start, hi - other), hi)
    for text, first, end in (
        ("attends to all keys up to the query, in no window", start, hi),
        ("leaves out the query's own key", lo, hi - 1),
        ("attends to one key after the query", lo, hi + 1),
        ("attends as far after the query as before it", lo, hi + window - 1),
        ("leaves out key 0", lo.clamp(min=1), hi),
    ):
        yield _selecting(evidence, text, first, end)
    if cu is not None:
        yield _selecting(evidence, "takes the packed sequences for one", hi - window, hi)
        for text, (begins, _) in moved_starts(t["k"].shape[1], cu):
            yield _selecting(evidence, text, torch.maximum(begins[token], hi - window), hi)
    for tile in TILES:
        down, up = lo // tile * tile, (lo + tile - 1) // tile * tile
        whole = (hi + tile - 1) // tile * tile
        for text, first, end in (
            (f"attends up to the end of its tile of {tile}, past the query", lo, whole),
            (f"attends from the begin of a tile of {tile} on, before the window", down, hi),
            (f"attends only from the first of the tiles of {tile} that the window holds", up, hi),
        ):
            yield _selecting(evidence, text, first, end)
    yield from sharing.hypotheses(evidence)


def other_windows(inputs: Inputs) -> Mistakes:
    window = int(inputs.options["window"])
    for other in (window - 1, window + 1):
        if other:
            text = f"uses a window of {other} keys instead of {window}"
            yield text, inputs.replaced(window=other)
    every = inputs.replaced(window=inputs.tensors["q"].shape[1])
    yield "attends to all keys up to the query, in no window", every
    yield from packed_as_one(inputs)


def select_complete(inputs: Inputs, rows: Tensor) -> Selection:
    _, position, first = _compressed_places(inputs, rows)
    block, stride = (int(inputs.options[name]) for name in ("block", "stride"))
    return _select(inputs, rows, first, first + _complete(position, block, stride))


def _compressed_places(inputs: Inputs, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the token of each row, its position in its sequence, and the first of its keys."""
    cu, cu_keys = (inputs.tensors.get(name) for name in ("cu_seqlens", "cu_keys"))
    token, start, _ = _token_and_sequence(inputs, rows)
    first = start if cu is None or cu_keys is None else _of_tokens(cu, cu_keys[:-1])[token]
    return token, token - start, first


def _complete(position: Tensor, block: int, stride: int) -> Tensor:
    """Count the compressed keys that are complete for the query at this position."""
    seen = torch.div(position + 1 - block, stride, rounding_mode="floor") + 1
    return seen.clamp(min=0)


def mistakes_in_completeness(evidence: Evidence) -> Iterator[Hypothesis]:
    t = evidence.full.tensors
    block, stride = (int(evidence.full.options[name]) for name in ("block", "stride"))
    token, position, first = _compressed_places(evidence.full, evidence.rows)
    for text, other in _other_blocks(evidence.full):
        count = _complete(position, other, stride)
        yield _selecting(evidence, text, first, first + count)
    cu, cu_keys = t.get("cu_seqlens"), t.get("cu_keys")
    counts = torch.full_like(first, t["k"].shape[1])
    if cu is not None and cu_keys is not None:
        counts = _of_tokens(cu, cu_keys.diff())[token]
    text = "attends to all compressed keys, whatever the query's place"
    yield _selecting(evidence, text, first, first + counts)
    if cu is not None and cu_keys is not None:
        none, alone = torch.zeros_like(first), _complete(token, block, stride)
        yield _selecting(evidence, "takes the packed sequences for one", none, alone)
        before = torch.cat([cu_keys[:1], cu_keys[:-2]])
        lo = _of_tokens(cu, before)[token]
        count = _complete(position, block, stride)
        yield _selecting(evidence, "takes the keys of the sequence before", lo, lo + count)
    yield from sharing.hypotheses(evidence)


def other_completeness(inputs: Inputs) -> Mistakes:
    for text, block in _other_blocks(inputs):
        yield text, inputs.replaced(block=block)
    yield from packed_as_one(inputs)


def _other_blocks(inputs: Inputs) -> list[tuple[str, int]]:
    """Return mistakes that make a key complete after another number of tokens."""
    block, stride = (int(inputs.options[name]) for name in ("block", "stride"))
    return [
        ("sees each compressed key one token late", block + 1),
        ("sees each compressed key one token early", block - 1),
        ("sees compressed keys that have begun and that are not complete", 1),
        (f"sees compressed keys after {stride} tokens, the stride, that are not complete", stride),
    ]
