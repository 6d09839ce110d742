"""Mistakes in which keys of its spans a query attends to (op selection_ranges)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nsabench.assessment.diagnosis import keys as of_keys
from nsabench.assessment.diagnosis.evidence import Evidence, Hypothesis
from nsabench.assessment.diagnosis.keys import Keys
from nsabench.ops import Inputs


def take(inputs: Inputs, rows: Tensor) -> Inputs:
    """The problem that some of the queries are by themselves, each as a group of its own."""
    t = inputs.tensors
    b, s, g = torch.unravel_index(rows, t["q"].shape[:3])
    return Inputs(
        {
            "q": t["q"][b, s, g][None, None],
            "k": t["k"][b, g][None],
            "v": t["v"][b, g][None],
            "ranges": t["ranges"][b, s, g][None, None],
        },
        inputs.options,
    )


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    t = evidence.inputs.tensors
    times = _times_selected(t["ranges"][0, 0], t["k"].shape[2])
    chosen = [row.nonzero().flatten() for row in times]
    count = torch.tensor([len(indices) for indices in chosen], device=times.device)
    if not int(count.max()):
        return
    k, v = (
        pad_sequence([t[name][0, r][indices] for r, indices in enumerate(chosen)], batch_first=True)
        for name in ("k", "v")
    )
    keys = Keys(evidence, k, v, count)
    yield from of_keys.prefixes(keys)

    def if_counted(how_often: Tensor) -> Tensor:
        rows = [how_often[r][indices] for r, indices in enumerate(chosen)]
        return keys.attend(pad_sequence(rows, batch_first=True).unsqueeze(1).double())

    if int(times.max()) > 1:
        yield Hypothesis(
            "counts keys as often as spans hold them: where spans overlap, more than once",
            partial(if_counted, times),
        )
    for end, shift in (("first", (1, 0)), ("last", (0, -1))):
        short = t["ranges"][0, 0] + torch.tensor(shift, device=times.device)
        yield Hypothesis(
            f"leaves out the {end} key of each span",
            partial(if_counted, _times_selected(short, t["k"].shape[2]) > 0),
        )
    yield from of_keys.ends(keys)
    yield from of_keys.softmax(keys)
    yield from of_keys.accumulation(keys)


def _times_selected(ranges: Tensor, keys: int) -> Tensor:
    """How many of its spans [R,n,2] hold each of the keys: [R,keys]."""
    positions = torch.arange(keys, device=ranges.device)
    starts, stops = (ranges[..., i].long().unsqueeze(-1) for i in (0, 1))
    return ((positions >= starts) & (positions < stops)).sum(1)
