"""Trying the hypotheses on the evidence, within a time limit."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from nsabench.checker.diagnosis import generic
from nsabench.checker.diagnosis.evidence import FAR_OFF, Evidence, Hypothesis, gather
from nsabench.checker.diagnosis.known import KNOWN, Knowledge
from nsabench.checker.diagnosis.location import locate, within
from nsabench.machine.clock import now_s
from nsabench.ops import Inputs, Op, rows_left_out

EXPLAINS = 0.2  # an explanation leaves at most this share of the error
SURE = 0.01  # and one that leaves no more than this need not be beaten
WORTH_SAYING = 0.5  # one that leaves more than this says nothing
BETTER = 0.9  # a later hypothesis must beat an earlier one by this much
TIME_LIMIT_S = 2.0
UNWRITTEN = "NaN is also what the bench leaves where a kernel does not write"


def explain(op: Op, inputs: Inputs, output: Tensor, previous: Tensor | None) -> str:
    """Return the hypothesis that reproduces the output, or else where the output is off."""
    oracle = op.oracle(inputs)
    if op.leaves_rows_out:  # rows that are not compared need no explanation
        output = output.masked_fill(~rows_left_out.compared(oracle).unsqueeze(-1), 0.0)
        oracle = rows_left_out.without(oracle)
    bad = ~torch.isfinite(output)
    if bad.any():
        text = f"{int(bad.sum())} of {output.numel()} elements are NaN or infinite: {locate(bad)}"
        return text + (f"; {UNWRITTEN}" if output.isnan().any() else "")
    known = KNOWN.get(op.name)
    select, lead = (known.select, known.lead) if known else (None, None)
    evidence = gather(op, inputs, output, oracle, previous, select, lead)
    mae = evidence.mae(evidence.oracle)
    best, error = _best(evidence, known)
    if best is not None and error <= EXPLAINS * mae:
        where = within(evidence.off.mean(-1), error)
        distances = f"MAE {error:.2g} against that hypothesis, {mae:.3g} against the op"
        return f"{best.text}{where} ({distances})"
    nearest = ""
    if best is not None and error <= WORTH_SAYING * mae:
        nearest = f"; the nearest, that it {best.text}, leaves {error:.2g} of {mae:.2g}"
    where = locate(evidence.off >= evidence.off.max() / FAR_OFF)
    return f"no hypothesis explains it{nearest}; the largest errors are in {where}"


def _best(evidence: Evidence, known: Knowledge | None) -> tuple[Hypothesis | None, float]:
    best: Hypothesis | None = None
    error, off = float("inf"), evidence.mae(evidence.oracle)
    end = now_s() + TIME_LIMIT_S
    own = known.hypotheses(evidence) if known else ()
    for hypothesis in chain(generic.at_hand(evidence), own, generic.hypotheses(evidence)):
        tried = evidence.mae(hypothesis.predict())
        if tried < BETTER * error:
            best, error = hypothesis, tried
        if error <= SURE * off or now_s() > end:
            break
    return best, error
