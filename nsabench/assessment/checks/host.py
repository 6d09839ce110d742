"""Host: a call that holds the CPU for longer than the device is, in a row of calls, as fast as its
host. The time of the device alone, which a verdict is about, then hides what a caller pays."""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.assessment.checks.finding import Effect, Finding
from nsabench.assessment.checks.limits import Limits
from nsabench.assessment.checks.row import Row
from nsabench.model.vocabulary import Mode, Role

MORE = 1.25  # times the time of the device: no doubt which of the two is awaited


def check(rows: Sequence[Row], limits: Limits) -> list[Finding]:
    """Candidates that are bound by their host."""
    return [
        Finding("host", Effect.NOTE, _say(row), row.case_id, row.implementation)
        for row in rows
        if row.role is Role.CANDIDATE
        and row.host_us is not None
        and row.timed_ms is not None
        and row.host_us > MORE * row.timed_ms * 1e3
    ]


def _say(row: Row) -> str:
    assert row.host_us is not None and row.timed_ms is not None
    what = "of the CPU to replay it" if row.mode is Mode.GRAPH else "of Python"
    sentence = (
        f"bound by its host: {row.host_us:.0f} µs {what} for {row.timed_ms * 1e3:.0f} µs on the "
        f"device"
    )
    if row.queued_ms is not None:
        sentence += f"; one behind the other, calls take {row.queued_ms * 1e3:.0f} µs each"
    return sentence
