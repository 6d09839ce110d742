"""Mistakes of the ops of a decode step: in which keys of its caches a token attends to, and in how
the branches are put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from nsabench.checker.diagnosis import nsa, sharing
from nsabench.checker.diagnosis.evidence import Evidence, Hypothesis, Mistakes
from nsabench.checker.diagnosis.selected import Selection, coordinates, union
from nsabench.ops import DecodeSizes, Inputs


def lead(inputs: Inputs) -> tuple[int, ...]:
    return tuple(inputs.tensors["k"].shape[:2])


def _select(
    inputs: Inputs, rows: Tensor, chosen: Callable[[Tensor, Tensor], list[Tensor]]
) -> Selection:
    """chosen: the keys of each row, by batch and head."""
    t = inputs.tensors
    b, h = coordinates(rows, lead(inputs))
    return Selection(
        q=t["q"].unflatten(1, (t["k"].shape[1], -1))[b, h],
        k=t["k"],
        v=t["v"],
        batch=b,
        head=h,
        chosen=chosen(b, h),
        sm_scale=inputs.options["sm_scale"],
    )


def select_newest(inputs: Inputs, rows: Tensor) -> Selection:
    """The keys of a window, or of a whole cache without one."""
    keys = _newest(inputs, rows, inputs.options.get("window"))
    return _select(inputs, rows, lambda b, h: [keys] * len(b))


def _newest(inputs: Inputs, rows: Tensor, window: int | None) -> Tensor:
    tokens = inputs.tensors["k"].shape[2]
    first = 0 if window is None else max(tokens - int(window), 0)
    return torch.arange(first, tokens, device=rows.device)


def select_blocks(inputs: Inputs, rows: Tensor) -> Selection:
    t = inputs.tensors
    keys = t["k"].shape[2]
    return _select(inputs, rows, lambda b, h: union(t["ranges"][b, h].long(), keys))


def mistakes_in_a_window(evidence: Evidence) -> Iterator[Hypothesis]:
    inputs, rows = evidence.full, evidence.rows
    window = int(inputs.options["window"])
    for text, keys in (
        *(
            (f"uses a window of {w} keys instead of {window}", _newest(inputs, rows, w))
            for w in (window - 1, window + 1)
        ),
        ("attends to all of the cache, in no window", _newest(inputs, rows, None)),
        ("leaves out the token's own key", _newest(inputs, rows, window)[:-1]),
        ("has its window end one key early", _newest(inputs, rows, window + 1)[:-1]),
    ):
        yield sharing.selecting(evidence, text, [keys] * len(rows))
    yield from sharing.hypotheses(evidence)


def mistakes_in_blocks(evidence: Evidence) -> Iterator[Hypothesis]:
    t, size = evidence.full.tensors, int(evidence.full.options["block_size"])
    keys, heads = t["k"].shape[2:0:-1]
    b, h = coordinates(evidence.rows, lead(evidence.full))
    ranges = t["ranges"][b, h].long()
    count = ranges.shape[1]
    filled = ranges[..., 1:] > ranges[..., :1]
    whole = torch.stack([ranges[..., 0], ranges[..., 0] + size], -1)
    for text, changed in (
        ("leaves out the last key of each block", ranges - ranges.new_tensor([0, 1])),
        ("leaves out the first key of each block", ranges + ranges.new_tensor([1, 0])),
        ("attends to one key beyond the end of each block", ranges + ranges.new_tensor([0, 1])),
        (f"leaves out the last of the {count} blocks", ranges[:, :-1]),
        (f"leaves out the first of the {count} blocks", ranges[:, 1:]),
        ("leaves out block 0", torch.where(ranges[..., :1] == 0, 0, ranges)),
        ("leaves out the blocks that are not whole", torch.where(whole > keys, 0, ranges)),
    ):
        some = torch.where(filled[:, : changed.shape[1]], changed, 0)
        yield sharing.selecting(evidence, text, union(some, keys))
    by_head = [union(t["ranges"][b, 0 * h + i].long(), keys) for i in range(heads)]
    if heads > 1:
        yield sharing.selecting(evidence, "takes the choice of head 0", by_head[0])
    yield from sharing.hypotheses(evidence, by_head)


def mistakes_in_a_step(evidence: Evidence) -> Iterator[Hypothesis]:
    inputs = evidence.inputs
    for text, other in (*nsa.mistakes_in_gates(inputs), *_other_sizes(inputs)):
        yield Hypothesis(text, partial(evidence.op.oracle, other))


def _other_sizes(inputs: Inputs) -> Mistakes:
    sizes: DecodeSizes = inputs.options["sizes"]
    for window in (sizes.window - 1, sizes.window + 1):
        if window > 0:
            text = f"uses a window of {window} keys instead of {sizes.window}"
            yield text, inputs.replaced(sizes=replace(sizes, window=window))
    for count in (sizes.n_selected - 1, sizes.n_selected + 1):
        other = inputs.replaced(sizes=replace(sizes, n_selected=count))
        yield f"selects {count} blocks instead of {sizes.n_selected}", other
