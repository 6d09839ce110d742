"""Host: find calls whose host takes longer than their work on the device.

A caller in Python then waits for the host, which the device time hides. The verdict in the regime
`queue` shows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.model.record import Record
from nsabench.model.vocabulary import Mode, Regime, Role

MORE = 1.25  # times the device time: then a caller clearly waits for the host


def check(records: Sequence[Record], limits: Limits) -> list[Finding]:
    """Find candidates, and controls of this check, that are bound by their host."""
    findings = []
    for record in records:
        work_ms, queued_ms = worked_ms(record), record.median_in(Regime.QUEUE)
        if record.role is not Role.CANDIDATE and record.caught_by != "host":
            continue
        if work_ms is None or queued_ms is None or queued_ms <= MORE * work_ms:
            continue
        sentence = (
            f"bound by its host: {queued_ms * 1e3:.0f} µs of "
            f"{'replaying' if record.mode is Mode.GRAPH else 'Python'} for "
            f"{work_ms * 1e3:.0f} µs of work"
            f"{f', in {record.launches} launches' if record.launches else ''}"
        )
        findings.append(Finding("host", Effect.NOTE, sentence, *record.key))
    return findings


def worked_ms(record: Record) -> float | None:
    """Return how long the device works on a call; None if that is unknown, as on a CPU.

    It is the median time if the device was held until the call was queued. A call that waits for
    the device, or launches more than it queues, has gaps in that time, so its kernels' time counts.
    """
    if record.median_ms is None:
        return None
    if record.host_us is not None:
        return record.median_ms
    return None if record.kernels_us is None else record.kernels_us / 1e3
