"""Mistakes in which of its packed keys a row attends to (op selection_varlen)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nsabench.checker.diagnosis import sharing
from nsabench.checker.diagnosis.evidence import Evidence, Hypothesis
from nsabench.checker.diagnosis.selected import Selection, spans
from nsabench.ops import Inputs


def lead(inputs: Inputs) -> tuple[int, ...]:
    return (inputs.tensors["q"].shape[0],)


def select(inputs: Inputs, rows: Tensor) -> Selection:
    t = inputs.tensors
    none = torch.zeros_like(rows)
    return Selection(
        q=t["q"][rows],
        k=t["k"][None, None],
        v=t["v"][None, None],
        batch=none,
        head=none,
        chosen=spans(*_ends(inputs, rows), len(t["k"])),
        sm_scale=inputs.options["sm_scale"],
    )


def _ends(inputs: Inputs, rows: Tensor) -> tuple[Tensor, Tensor]:
    cu = inputs.tensors["cu_seqlens"].long()
    return cu[rows], cu[rows + 1]


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    inputs, rows = evidence.full, evidence.rows
    keys = len(inputs.tensors["k"])
    start, end = _ends(inputs, rows)
    longest = inputs.tensors["cu_seqlens"].diff().max()
    as_long = "attends from its first key on to as many keys as the longest row has"
    following, before = (_ends(inputs, (rows + by) % evidence.count) for by in (1, -1))
    for text, first, last in (
        ("attends to one key too many, the first key of the next row", start, end + 1),
        ("attends to one key too many, the last key of the row before", start - 1, end),
        (as_long, start, start + longest),
        ("attends to the keys of the next row", *following),
        ("attends to the keys of the previous row", *before),
    ):
        yield sharing.selecting(evidence, text, spans(first, last, keys))
    yield from sharing.hypotheses(evidence)
