"""Mistakes in which of its packed keys a row attends to (op selection_varlen)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nsabench.assessment.diagnosis import keys as of_keys
from nsabench.assessment.diagnosis.evidence import Evidence, Hypothesis
from nsabench.assessment.diagnosis.keys import Keys
from nsabench.ops import Inputs


def take(inputs: Inputs, rows: Tensor) -> Inputs:
    """The problem that some of the rows are by themselves."""
    t = inputs.tensors
    lengths = t["cu_seqlens"].diff()[rows]
    some = torch.cat([torch.arange(*_span(inputs, row)) for row in rows.tolist()]).to(rows.device)
    starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(t["cu_seqlens"].dtype)
    return Inputs(
        {"q": t["q"][rows], "k": t["k"][some], "v": t["v"][some], "cu_seqlens": starts},
        inputs.options,
    )


def _span(inputs: Inputs, row: int) -> tuple[int, int]:
    start, stop = inputs.tensors["cu_seqlens"][row : row + 2].tolist()
    return start, stop


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    t = evidence.inputs.tensors
    count = t["cu_seqlens"].diff().long()
    if not int(count.max()):
        return
    k, v = (pad_sequence(t[name].split(count.tolist()), batch_first=True) for name in ("k", "v"))
    keys = Keys(evidence, k, v, count)
    yield from of_keys.prefixes(keys)
    yield from of_keys.ends(keys)
    yield from of_keys.softmax(keys)
    yield from of_keys.accumulation(keys)
