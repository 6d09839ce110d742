"""Check calls that are made back to back from Python."""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.roofline import DeviceLimits
from nsabench.model.record import Record
from nsabench.model.vocabulary import Mode, Regime, Role, Status

IN_A_BURST = "called one behind the other, "  # the worker's reason begins so
MORE = 1.25  # times the device time: then a caller clearly waits for the host


def check_burst(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """The results of back-to-back calls must be right, and complete when the clock stops.

    Work that a call leaves to a thread of the host is not in the time, and its result is late.
    """
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


def check_host(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """Is a call bound by its host, which takes longer than the work on the device?

    A caller in Python then waits for the host, which the device time hides. The verdict in the
    regime `queue` shows it.
    """
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
    """Return how long the device works on a call; None if that is unknown, as on a CPU."""
    if record.median_ms is None:
        return None
    # The device was held until the call was queued. Else the time has gaps, so the kernels' counts.
    if record.host_us is not None:
        return record.median_ms
    return None if record.kernels_us is None else record.kernels_us / 1e3
