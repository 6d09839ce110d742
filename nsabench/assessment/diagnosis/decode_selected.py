"""Mistakes in which blocks of its cache a token attends to (op decode_selected)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nsabench.assessment.diagnosis import caches, sharing
from nsabench.assessment.diagnosis.caches import lead
from nsabench.assessment.diagnosis.coordinates import coordinates
from nsabench.assessment.diagnosis.evidence import Evidence, Hypothesis
from nsabench.assessment.diagnosis.selected import Selection, union
from nsabench.ops import Inputs

__all__ = ["hypotheses", "lead", "select"]


def select(inputs: Inputs, rows: Tensor) -> Selection:
    t = inputs.tensors
    keys = t["k"].shape[2]
    return caches.select(inputs, rows, lambda b, h: union(t["ranges"][b, h].long(), keys))


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
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
    yield from sharing.dealt(evidence, by_head)
    yield from sharing.hypotheses(evidence)
