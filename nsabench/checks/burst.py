"""Burst: the results of back-to-back calls must be right, and complete when the clock stops.

The worker checks a call of a burst, often the last, as its result was at that moment. Work that a
call leaves to a thread of the host is not in the time, and its result is not there yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.model.record import Record
from nsabench.model.vocabulary import Status

IN_A_BURST = "called one behind the other, "  # the worker's reason begins so


def check(records: Sequence[Record], limits: Limits) -> list[Finding]:
    return [
        Finding(
            "burst",
            Effect.NOTE,
            f"right when it is called alone, and wrong in a burst: {record.reason}",
            *record.key,
        )
        for record in records
        if record.status is Status.WRONG and record.reason.startswith(IN_A_BURST)
    ]
