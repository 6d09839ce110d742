"""Ordering: the work of a call must end before the caller's stream goes on."""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.model.record import Record

OFTEN = 0.5  # share of samples; a few late ones can be noise of the host


def check(records: Sequence[Record], limits: Limits) -> list[Finding]:
    findings = []
    for record in records:
        escaped = record.observation.samples.escaped_ms if record.observation else []
        if record.median_ms is None or not escaped:
            continue
        share = sum(ms > 0 for ms in escaped) / len(escaped)
        if share > OFTEN:
            sentence = (
                f"in {share:.0%} of the samples work went on after the caller's stream was done: "
                f"the next operation on that stream would read an unfinished output"
            )
            findings.append(Finding("ordering", Effect.WRONG, sentence, *record.key))
    return findings
