"""Host: where calls one behind the other take longer than the device works on each, the host is
what a caller waits for. The time of the device hides what such a caller pays; the verdict in the
regime `queue` is about it.
"""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.assessment.checks.finding import Effect, Finding
from nsabench.assessment.checks.limits import Limits
from nsabench.assessment.checks.row import Row
from nsabench.model.vocabulary import Mode, Role

MORE = 1.25  # times the time of the device: no doubt which of the two is awaited


def check(rows: Sequence[Row], limits: Limits) -> list[Finding]:
    """Candidates, and controls of it, that are bound by their host."""
    return [
        Finding(
            "host",
            Effect.NOTE,
            f"bound by its host: {row.queued_ms * 1e3:.0f} µs of "
            f"{'replaying' if graph else 'Python'} for {row.timed_ms * 1e3:.0f} µs of work"
            f"{f', in {row.launches} launches' if row.launches else ''}",
            row.case_id,
            row.implementation,
        )
        for row in rows
        if (row.role is Role.CANDIDATE or row.caught_by == "host")
        and row.host_us is not None  # on a CPU there is no device to wait for
        and row.queued_ms is not None
        and row.timed_ms is not None
        and row.queued_ms > MORE * row.timed_ms
        for graph in [row.mode is Mode.GRAPH]
    ]
