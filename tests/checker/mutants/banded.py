"""What the mutants of sliding_window and compressed share: query t sees keys lo(t) up to hi(t)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nsabench.model.case import Case
from tests.checker.mutants.mutant import broken_steps
from tests.checker.mutants.softmax import RIGHT, Steps, attend

Edges = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class OtherEdges(Steps):
    """Queries see other keys: change(lo, hi) -> (lo, hi)."""

    def __init__(self, change: Edges) -> None:
        self.change = change

    def edges(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        return self.change(lo, hi)


def over(
    q: Tensor, k: Tensor, v: Tensor, lo: Tensor, hi: Tensor, sm_scale: float, steps: Steps = RIGHT
) -> Tensor:
    lo, hi = steps.edges(lo, hi)
    key = torch.arange(k.shape[1])
    seen = (key >= lo.unsqueeze(1)) & (key < hi.unsqueeze(1))
    group = q.shape[2] // k.shape[2]
    # Query head i is the (i % group)-th of KV head i // group.
    rows = q.transpose(1, 2).unflatten(1, (-1, group)).flatten(2, 3)
    keys, values = (x.transpose(1, 2) for x in (k, v))
    out = attend(rows, keys, values, seen.repeat(group, 1), sm_scale, steps)
    return out.unflatten(2, (group, -1)).flatten(1, 2).transpose(1, 2).to(q.dtype).contiguous()


def broken_band(case: Case, bug: str, diagnosis: str, change: Edges) -> None:
    """Add the right kernel, whose queries see other keys."""
    broken_steps(case, bug, diagnosis, OtherEdges(change))


def starts(tokens: int, cu: Tensor | None, of: Tensor | None = None) -> Tensor:
    """Where the sequence of each of so many tokens begins; or what `of` says of its sequence."""
    if cu is None:
        return torch.zeros(tokens, dtype=torch.int64)
    begins = (cu if of is None else of).long()[:-1]
    return torch.repeat_interleave(begins, cu.diff().long())
