"""Ordering: the work of a call must be over when the caller's stream says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.model.record import Record

# One late sample can be the host's noise; most samples cannot.
OFTEN = 0.5


def check(records: Sequence[Record], limits: Limits) -> list[Finding]:
    """Records whose work outlived the end event in most samples."""
    return list(_find(records))


def _find(records: Sequence[Record]) -> Iterator[Finding]:
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
            yield Finding("ordering", Effect.WRONG, sentence, *record.key)
