"""Host: where calls one behind the other take longer than the device works on each, the host is
what a caller waits for. The time of the device hides what such a caller pays; the verdict in the
regime `queue` is about it.
"""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.checks.row import Row
from nsabench.model.vocabulary import Mode, Role

MORE = 1.25  # times the time of the device: no doubt which of the two is awaited


def check(rows: Sequence[Row], limits: Limits) -> list[Finding]:
    """Candidates, and controls of it, that are bound by their host."""
    return [
        Finding(
            "host",
            Effect.NOTE,
            f"bound by its host: {row.queued_ms * 1e3:.0f} µs of "
            f"{'replaying' if graph else 'Python'} for {work_ms * 1e3:.0f} µs of work"
            f"{f', in {row.launches} launches' if row.launches else ''}",
            row.case_id,
            row.implementation,
        )
        for row in rows
        if (row.role is Role.CANDIDATE or row.caught_by == "host")
        for work_ms in [worked_ms(row)]
        if work_ms is not None and row.queued_ms is not None and row.queued_ms > MORE * work_ms
        for graph in [row.mode is Mode.GRAPH]
    ]


def worked_ms(row: Row) -> float | None:
    """How long the device works on a call: its time where the device was held meanwhile. A call
    that launches more than a device queues, or that waits for it, has its own gaps in that time:
    there it is what its kernels take by themselves. None: not known, as on a CPU, which has no
    device to wait for."""
    if row.timed_ms is None:
        return None
    if row.host_us is not None:
        return row.timed_ms
    return None if row.kernels_us is None else row.kernels_us / 1e3
