"""Mistakes in which keys of its cache a token's window holds (op decode_window)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nsabench.assessment.diagnosis import caches, sharing
from nsabench.assessment.diagnosis.caches import lead
from nsabench.assessment.diagnosis.evidence import Evidence, Hypothesis
from nsabench.assessment.diagnosis.selected import Selection
from nsabench.ops import Inputs

__all__ = ["hypotheses", "lead", "select"]


def select(inputs: Inputs, rows: Tensor) -> Selection:
    keys = _last(inputs, rows, int(inputs.options["window"]))
    return caches.select(inputs, rows, lambda b, h: [keys] * len(b))


def _last(inputs: Inputs, rows: Tensor, window: int) -> Tensor:
    tokens = inputs.tensors["k"].shape[2]
    return torch.arange(max(tokens - window, 0), tokens, device=rows.device)


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    inputs, rows = evidence.full, evidence.rows
    window, tokens = int(inputs.options["window"]), inputs.tensors["k"].shape[2]
    for text, keys in (
        *(
            (f"uses a window of {w} keys instead of {window}", _last(inputs, rows, w))
            for w in (window - 1, window + 1)
        ),
        ("attends to all of the cache, in no window", _last(inputs, rows, tokens)),
        ("leaves out the token's own key", _last(inputs, rows, window)[:-1]),
        ("has its window end one key early", _last(inputs, rows, window + 1)[:-1]),
    ):
        yield sharing.selecting(evidence, text, [keys] * len(rows))
    yield from sharing.dealt(evidence)
    yield from sharing.hypotheses(evidence)
