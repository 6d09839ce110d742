"""Mistakes in which blocks, and which keys of them, a query attends to (op selection_blocks)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from nsabench.assessment.diagnosis.evidence import Evidence, Hypothesis
from nsabench.ops import Inputs
from nsabench.ops.selection_blocks import attend


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    inputs = evidence.inputs
    chosen = inputs.tensors["block_indices"]
    yield Hypothesis(
        "attends to keys after the query, to all of its own block",
        partial(attend, inputs, causal=False),
    )
    if "cu_seqlens" in inputs.tensors:
        alone = {n: t for n, t in inputs.tensors.items() if n != "cu_seqlens"}
        yield Hypothesis(
            "takes the packed sequences for one",
            partial(attend, Inputs(alone, inputs.options)),
        )
    for slot, name in ((0, "first"), (chosen.shape[-1] - 1, "last")):
        yield Hypothesis(
            f"leaves out the {name} of the {chosen.shape[-1]} blocks that are given",
            partial(_without, evidence, _slot(chosen, slot)),
        )
    yield Hypothesis(
        "leaves out block 0",
        partial(_without, evidence, chosen == 0),
    )
    if "cu_seqlens" not in inputs.tensors:
        positions = torch.arange(chosen.shape[1], device=chosen.device)
        own = (positions // int(inputs.options["block_size"])).view(-1, 1, 1)
        yield Hypothesis(
            "leaves out the query's own block", partial(_without, evidence, chosen == own)
        )


def _slot(chosen: Tensor, slot: int) -> Tensor:
    marked = torch.zeros_like(chosen, dtype=torch.bool)
    marked[..., slot] = True
    return marked


def _without(evidence: Evidence, left_out: Tensor) -> Tensor:
    chosen = evidence.inputs.tensors["block_indices"].masked_fill(left_out, -1)
    return attend(evidence.with_tensor("block_indices", chosen))
