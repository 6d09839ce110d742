"""Mistakes in which keys of its cache a token attends to: all of them (op decode_dense)."""

from __future__ import annotations

from collections.abc import Iterator

from nsabench.assessment.diagnosis import sharing
from nsabench.assessment.diagnosis.caches import all_keys as select
from nsabench.assessment.diagnosis.caches import lead
from nsabench.assessment.diagnosis.evidence import Evidence, Hypothesis

__all__ = ["hypotheses", "lead", "select"]


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    yield from sharing.dealt(evidence)
    yield from sharing.hypotheses(evidence)
