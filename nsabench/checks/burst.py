"""Burst: what calls one behind the other return must be right, and there when the clock stops.

The worker holds a call of a burst, often the last, to the oracle, as it was at that moment: work
that is put off into a thread of the host is not in the time, and its result is not there yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.model.record import Record
from nsabench.model.vocabulary import Status

IN_A_BURST = "called one behind the other, "  # how the worker begins to say it


def check(records: Sequence[Record], limits: Limits) -> list[Finding]:
    """Records that were right by themselves, and wrong among others."""
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
